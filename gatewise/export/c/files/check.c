/* Compares the compiled model with the golden vectors: as a sequence, as a stream, and as two streams at once. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "golden.h"
#include "model.h"
#ifdef MODEL_WEIGHT_BYTES
#include "read_weights.h"
#endif

static model_state a, b;
static float y[GOLDEN_ANSWERS * MODEL_OUTPUTS];

static int differs(const char *what, const float *got, const float *want, int n) {
    float worst = 0;
    int bad = 0;
    for (int j = 0; j < n; j++) {
        const float error = fabsf(got[j] - want[j]);
        if (!(error <= 1e-5f + 1e-4f * fabsf(want[j]))) bad++;
        if (!(error <= worst)) worst = error;
    }
    printf("%-12s %d numbers, largest difference %.3g: %s\n", what, n, (double)worst, bad ? "WRONG" : "ok");
    return bad != 0;
}

/* Nothing may depend on what memory holds before. */
static int begin(model_state *m) {
    memset(m, 0xff, sizeof *m);
#ifdef MODEL_WEIGHT_BYTES
    return read_weights(m);
#else
    model_reset(m);
    return MODEL_OK;
#endif
}

#if MODEL_STREAMS
static int step(model_state *m, int t, float *to) {
#if MODEL_WORDS
    return model_step(m, golden_x[t], to);
#else
    return model_step(m, golden_x + t * MODEL_INPUTS, to);
#endif
}
#endif

int main(void) {
    int failed = 0;
    if (begin(&a) || begin(&b)) {
        fprintf(stderr, "the weights cannot be loaded\n");
        return 2;
    }
    memset(y, 0xff, sizeof y);
    failed |= model_run(&a, GOLDEN_STEPS, golden_x, y) != MODEL_OK;
    failed |= differs("sequence", y, golden_y, GOLDEN_ANSWERS * MODEL_OUTPUTS);
#if MODEL_STREAMS
    /* Two instances take turns; the second hears the sequence backwards. */
    model_reset(&a);
    memset(y, 0xff, sizeof y);
    for (int t = 0; t < GOLDEN_STEPS; t++) {
        failed |= step(&a, t, MODEL_FINAL ? y : y + t * MODEL_OUTPUTS) != MODEL_OK;
        failed |= step(&b, GOLDEN_STEPS - 1 - t, NULL) != MODEL_OK;
    }
    failed |= differs("two streams", y, golden_y, GOLDEN_ANSWERS * MODEL_OUTPUTS);
#else
    failed |= model_run(&b, GOLDEN_STEPS, golden_x, y) != MODEL_OK;
    failed |= differs("again", y, golden_y, GOLDEN_ANSWERS * MODEL_OUTPUTS);
    failed |= model_run(&a, MODEL_BLOCK + 1, golden_x, y) != MODEL_BAD_STEPS;
#endif
    failed |= model_run(&a, 0, golden_x, y) != MODEL_BAD_STEPS;
#if MODEL_WORDS
    {
        const int32_t before[1] = {-1}, past[1] = {MODEL_WORDS};
        failed |= model_run(&a, 1, before, y) != MODEL_BAD_WORD || model_run(&a, 1, past, y) != MODEL_BAD_WORD;
    }
#endif
    puts(failed ? "FAILED" : "passed");
    return failed;
}
