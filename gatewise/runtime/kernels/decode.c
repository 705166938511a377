#include "decode.h"

static gw_call step_of(const gw_decoding *call) {
    return (gw_call){.steps = 1, .size = call->size, .batch_first = 1, .state = call->state, .threads = call->threads};
}

/* Scratch: symbols (B), scores (B, V + A), lengths (B), shares (T), then what the network needs. All begin at whole
   vectors. */
static size_t symbol_floats(const gw_decoding *call) { return GW_PADDED((size_t)call->size * 2); }

static size_t score_floats(const gw_network *net, const gw_decoding *call) {
    return GW_PADDED((size_t)call->size * (size_t)gw_network_width(net));
}

static size_t length_floats(const gw_decoding *call) { return GW_PADDED((size_t)call->size); }

static size_t share_floats(const gw_decoding *call) { return GW_PADDED((size_t)call->n_things); }

size_t gw_decode_scratch(const gw_network *net, const gw_decoding *call) {
    const gw_call step = step_of(call);
    return symbol_floats(call) + score_floats(net, call) + length_floats(call) + share_floats(call) +
           gw_network_scratch(net, &step);
}

/* The first of the largest. */
static int32_t largest_of(int32_t n, const float *scores) {
    int32_t best = 0;
    for (int32_t j = 1; j < n; j++)
        if (scores[j] > scores[best]) best = j;
    return best;
}

/* In several sums, which a compiler adds side by side. */
static float dot(int32_t n, const float *a, const float *b) {
    float part[8] = {0}, sum = 0;
    int32_t j = 0;
    for (; j + 8 <= n; j += 8)
        for (int32_t k = 0; k < 8; k++) part[k] += a[j + k] * b[j + k];
    for (; j < n; j++) sum += a[j] * b[j];
    return sum + ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}

/* scores (words) += sum over t of shares_t votes_t; behind the scores lies the query. */
static void add_votes(const gw_network *net, const gw_decoding *call, int32_t b, int32_t words, float *scores,
                      float *shares) {
    const ptrdiff_t first = (ptrdiff_t)b * call->n_things;
    for (int32_t t = 0; t < call->n_things; t++)
        shares[t] = dot(call->n_query, scores + words, call->keys + (first + t) * call->n_query);
    net->kernels->softmax(1, call->n_things, shares);
    for (int32_t t = 0; t < call->n_things; t++) {
        const float share = shares[t], *votes = call->votes + (first + t) * words;
        for (int32_t j = 0; j < words; j++) scores[j] += share * votes[j];
    }
}

void gw_decode(const gw_network *net, const gw_decoding *call, float *scratch) {
    const int32_t width = gw_network_width(net), words = width - call->n_query;
    int64_t *const symbols = (int64_t *)scratch;
    float *const scores = scratch + symbol_floats(call);
    int32_t *const running = (int32_t *)(scores + score_floats(net, call));
    float *const shares = (float *)running + length_floats(call);
    float *const rest = shares + share_floats(call);
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
            if (call->keys) add_votes(net, call, b, words, scores + (ptrdiff_t)b * width, shares);
            symbols[b] = largest_of(words, scores + (ptrdiff_t)b * width);
            call->ids[(ptrdiff_t)b * call->longest + k] = symbols[b];
            if (symbols[b] == call->end) running[b] = 0, left--;
        }
    }
}
