/* {{ title }} */

#include "model.h"

#include <math.h>
#include <string.h>

{% if inside %}
#ifdef GW_APART /* with kernels that were compiled before */
#include "gw.h"
#else
#define GW_INSIDE
#if defined(__GNUC__) && !defined(__clang__) /* it warns of arrays in branches that these sizes never take */
#pragma GCC diagnostic ignored "-Warray-bounds"
#pragma GCC diagnostic ignored "-Wstringop-overread"
#endif
#include "gw.c"
#include "words.c"
#endif
{% else %}
#include "gw.h"
{% endif %}
{% for name in includes %}
#include "{{ name }}"
{% endfor %}

{{ constants }}
{%- for helper in helpers %}
{{ helper }}
{% endfor %}
{{ "GW_FLAT " if inside else "" }}static int compute({{ given }}) {
{% for line in body %}
    {{ line }}
{% endfor %}
    return MODEL_OK;
}

{% if weight_bytes %}
{% include "loader.c" %}
{% endif %}
void model_reset(model_state *m) {
{% for line in reset %}
    {{ line }}
{% endfor %}
}

int model_run({{ given }}) {
{% for line in checks %}
    {{ line }}
{% endfor %}
{% if pieces %}
{% if not goes_on %}
    model_reset(m);
{% endif %}
    for (int32_t t = 0; t < {{ steps }}; t += MODEL_BLOCK) {
        const int32_t n = {{ steps }} - t < MODEL_BLOCK ? {{ steps }} - t : MODEL_BLOCK;
        const int status = compute({{ pieces }});
        if (status != MODEL_OK) return status;
    }
    return MODEL_OK;
{% else %}
    return compute({{ given_to }});
{% endif %}
}
{% if goes_on %}

int model_step({{ step_given }}) { return model_run({{ step_call }}); }
{% endif %}
