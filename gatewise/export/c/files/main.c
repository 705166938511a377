/* Example: the golden sequence in, answers to standard output. */

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

{% include "begin.c" %}
int main(void) {
    int error = begin(&a);
    if (!error) error = {{ run }};
    if (error) {
        fprintf(stderr, "error %d: see model.h\n", error);
        return error;
    }
{% for output in outputs %}
    printf("{{ output.name }}:");
    for (int j = 0; j < {{ output.count }}; j++) printf(" {{ output.form }}", {{ output.cast }}{{ output.name }}[j]);
    putchar('\n');
{% endfor %}
    return 0;
}
