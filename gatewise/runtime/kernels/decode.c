#include "decode.h"

static gw_call step_of(const gw_decoding *call) {
    return (gw_call){.steps = 1, .size = call->size, .batch_first = 1, .state = call->state, .threads = call->threads};
}

/* Scratch: symbols (B), scores (B, V), lengths (B), then what the network needs. All begin at whole vectors. */
static size_t symbol_floats(const gw_decoding *call) { return GW_PADDED((size_t)call->size * 2); }

static size_t score_floats(const gw_network *net, const gw_decoding *call) {
    return GW_PADDED((size_t)call->size * (size_t)gw_network_width(net));
}

static size_t length_floats(const gw_decoding *call) { return GW_PADDED((size_t)call->size); }

size_t gw_decode_scratch(const gw_network *net, const gw_decoding *call) {
    const gw_call step = step_of(call);
    return symbol_floats(call) + score_floats(net, call) + length_floats(call) + gw_network_scratch(net, &step);
}

/* The first of the largest. */
static int32_t largest_of(int32_t n, const float *scores) {
    int32_t best = 0;
    for (int32_t j = 1; j < n; j++)
        if (scores[j] > scores[best]) best = j;
    return best;
}

void gw_decode(const gw_network *net, const gw_decoding *call, float *scratch) {
    const int32_t width = gw_network_width(net);
    int64_t *const symbols = (int64_t *)scratch;
    float *const scores = scratch + symbol_floats(call);
    int32_t *const running = (int32_t *)(scores + score_floats(net, call));
    float *const rest = (float *)running + length_floats(call);
    gw_call step = step_of(call);
    int32_t left = call->size;

    step.ids = symbols;
    step.y = (gw_steps){scores, width, width};
    for (int32_t b = 0; b < call->size; b++) {
        symbols[b] = call->start;
        running[b] = 1;
        for (int32_t k = 0; k < call->longest; k++) call->ids[(ptrdiff_t)b * call->longest + k] = call->end;
    }
    for (int32_t k = 0; k < call->longest && left; k++, step.phase ^= 1) {
        /* Sequences that have ended are of length 0 from then on: nothing is computed for them. */
        step.lengths = left < call->size ? running : NULL;
        gw_network_run(net, &step, rest);
        for (int32_t b = 0; b < call->size; b++) {
            if (!running[b]) continue;
            symbols[b] = largest_of(width, scores + (ptrdiff_t)b * width);
            call->ids[(ptrdiff_t)b * call->longest + k] = symbols[b];
            if (symbols[b] == call->end) running[b] = 0, left--;
        }
    }
}
