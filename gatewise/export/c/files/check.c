/* Compares the compiled model with the golden vectors. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "golden.h"
#include "model.h"
#ifdef MODEL_WEIGHT_BYTES
#include "read_weights.h"
#endif

static model_state a;
{% for output in outputs %}
static {{ output.type }} {{ output.name }}[{{ output.count }}];
{% endfor %}

{% if "differs" in compares %}
static int differs(const char *what, const float *got, const float *want, int n) {
    float worst = 0;
    int bad = 0;
    for (int j = 0; j < n; j++) {
        const float error = got[j] == want[j] ? 0 : fabsf(got[j] - want[j]);
        if (!(error <= 1e-5f + 1e-4f * fabsf(want[j]))) bad++;
        if (!(error <= worst)) worst = error;
    }
    printf("%-12s %d numbers, largest difference %.3g: %s\n", what, n, (double)worst, bad ? "WRONG" : "ok");
    return bad != 0;
}

{% endif %}
{% if "unequal" in compares %}
static int unequal(const char *what, const int32_t *got, const int32_t *want, int n) {
    int bad = 0;
    for (int j = 0; j < n; j++) bad += got[j] != want[j];
    printf("%-12s %d whole numbers: %s\n", what, n, bad ? "WRONG" : "ok");
    return bad != 0;
}

{% endif %}
{% include "begin.c" %}
int main(void) {
    int failed = 0;
    if (begin(&a)) {
        fprintf(stderr, "the weights cannot be loaded\n");
        return 2;
    }
{% for output in outputs %}
    memset({{ output.name }}, 0xff, sizeof {{ output.name }});
{% endfor %}
    failed |= {{ run }} != MODEL_OK;
{% for output in outputs %}
    failed |= {{ output.compare }}("{{ output.name }}", {{ output.name }}, golden_{{ output.name }}, {{ output.count }});
{% endfor %}
{% if step %}
    model_reset(&a);
{% for output in outputs %}
    memset({{ output.name }}, 0xff, sizeof {{ output.name }});
{% endfor %}
    for (int t = 0; t < {{ steps }}; t++) failed |= {{ step }} != MODEL_OK;
{% for output in outputs %}
    failed |= {{ output.compare }}("{{ output.name }}", {{ output.name }}, golden_{{ output.name }}, {{ output.count }});
{% endfor %}
{% endif %}
    failed |= {{ nothing }};
    puts(failed ? "FAILED" : "passed");
    return failed;
}
