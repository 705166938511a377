/* {{ title }} */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MODEL_STREAMS {{ goes_on | int }} /* 1: there is model_step() */
#define MODEL_BLOCK {{ block }} /* {{ "steps computed at a time" if streams else "the largest size of every axis that a call chooses" }} */
{% for line in widths %}
{{ line }}
{% endfor %}
{% if weight_bytes %}
#define MODEL_WEIGHT_BYTES {{ weight_bytes }} /* of the weight file */
{% endif %}

enum {
    MODEL_OK = 0,
{% for name, said in errors.items() %}
    MODEL_{{ name }}, /* {{ said }} */
{% endfor %}
{% if weight_bytes %}
    MODEL_BAD_ALIGNMENT, /* the weights do not begin at a multiple of 4 bytes */
    MODEL_BAD_MAGIC,     /* not a weight file, or of the other byte order */
    MODEL_BAD_VERSION,   /* of another format */
    MODEL_BAD_SIZE,      /* not MODEL_WEIGHT_BYTES long: cut off, or of another model */
    MODEL_OTHER_MODEL,   /* whole, but not the weights of this model */
    MODEL_CORRUPT,       /* its bytes do not match its checksum */
    MODEL_NOT_LOADED     /* no weights were given, or those that were had one of these errors */
{% endif %}
};

/* Working memory of one instance; only the functions below touch it. */
typedef struct {
{% for field in fields %}
    {{ field }}
{% endfor %}
} model_state;

{% if weight_bytes %}
/* Takes the contents of the weight file, which must stay where they are, and begins a new sequence.
 * A further instance may be a copy: b = a; model_reset(&b). Returns MODEL_OK or what is wrong with the file. */
int model_load(model_state *m, const void *weights, size_t size);

{% endif %}
/* A new sequence {{ "begins." if goes_on else "begins, as every call of model_run() does." }} */
void model_reset(model_state *m);

/* {{ "Goes on from where the last call ended: a piece" if goes_on else "forward()" }} of one sequence, B = 1; everything row by row, int and bool as int32_t.
 *
{% for said in sizes + inputs %}
 *   {{ said }}
{% endfor %}
 *
 * Answers, where their pointer is not NULL; a state may replace the one before, no other may overlap an input:
 *
{% for said in outputs %}
 *   {{ said }}
{% endfor %}
{% if goes_on %}
 * What forward() says of a whole sequence is said as if it ended here.
{% endif %}
 * Returns MODEL_OK, or why nothing was computed. */
int model_run({{ given }});
{% if goes_on %}

/* One step: the same as model_run() with one. */
int model_step({{ step_given }});
{% endif %}

#ifdef __cplusplus
}
#endif

#endif
