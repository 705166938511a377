/* Example: numbers from standard input, answers to standard output.
 *
 * Words are ids, vectors MODEL_INPUTS numbers a step. A stream is answered step by step; a model of two directions
 * waits for the end of the input.
 */

#include <stdio.h>

#include "model.h"
#ifdef MODEL_WEIGHT_BYTES
#include "read_weights.h"
#endif

static model_state state;
static int begun; /* numbers of a step in which the input ended */

static void print(const float *y) {
    for (int j = 0; j < MODEL_OUTPUTS; j++) printf(j ? " %g" : "%g", (double)y[j]);
    putchar('\n');
}

#if MODEL_WORDS
enum { WIDTH = 1 };
static int32_t x[MODEL_BLOCK];

static int read_one(int32_t *to) {
    long id;
    if (scanf("%ld", &id) != 1) return 0;
    *to = id < 0 || id >= MODEL_WORDS ? -1 : (int32_t)id;
    return 1;
}
#else
enum { WIDTH = MODEL_INPUTS };
static float x[MODEL_BLOCK * MODEL_INPUTS];

static int read_one(float *to) {
    for (begun = 0; begun < MODEL_INPUTS; begun++)
        if (scanf("%f", to + begun) != 1) return 0;
    begun = 0;
    return 1;
}
#endif

int main(void) {
    static float y[MODEL_FINAL || MODEL_STREAMS ? MODEL_OUTPUTS : MODEL_BLOCK * MODEL_OUTPUTS];
    int error = MODEL_OK;
#ifdef MODEL_WEIGHT_BYTES
    error = read_weights(&state);
#else
    model_reset(&state);
#endif
#if MODEL_STREAMS
    while (!error && read_one(x)) {
        error = model_run(&state, 1, x, y);
        if (!error) print(y);
    }
#else
    int32_t steps = 0;
    while (steps < MODEL_BLOCK && read_one(x + steps * WIDTH)) steps++;
    if (!error) error = model_run(&state, steps, x, y);
    for (int32_t t = 0; !error && t < (MODEL_FINAL ? 1 : steps); t++) print(y + t * MODEL_OUTPUTS);
#endif
    int rest = getchar();
    while (rest == ' ' || (rest >= '\t' && rest <= '\r')) rest = getchar();
    if (!error && rest != EOF) {
#if MODEL_STREAMS
        fprintf(stderr, "not a number: '%c' is left over\n", rest);
#else
        fprintf(stderr, "not a number, or more than %d steps: '%c' is left over\n", MODEL_BLOCK, rest);
#endif
        return MODEL_BAD_STEPS;
    }
    if (begun) {
        fprintf(stderr, "the last step has %d of %d numbers and is left out\n", begun, WIDTH);
        return MODEL_BAD_STEPS;
    }
    if (error == MODEL_BAD_WORD) fprintf(stderr, "a word id outside 0..%d\n", MODEL_WORDS - 1);
    else if (error) fprintf(stderr, "error %d: see model.h\n", error);
    return error;
}
