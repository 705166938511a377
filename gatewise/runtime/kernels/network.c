#include "network.h"

#include <string.h>

#include "pool.h"
#include "threads.h"

enum {
    SEQUENCES_PER_PART = 4, /* fewer would waste the register tile of the products */
    AHEAD_FROM = 1 << 16,   /* recurrent weights; fewer stay in the cache in any order */
};

static int n_parts(const gw_call *call) {
    int parts = call->size / SEQUENCES_PER_PART;
    if (parts > call->threads) parts = call->threads;
    if (parts > GW_MAX_PARTS) parts = GW_MAX_PARTS;
    return parts > 1 ? parts : 1;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static int32_t level_width(const gw_network *net, int32_t level) {
    int32_t width = 0;
    for (int32_t d = 0; d < net->n_directions; d++) width += net->layers[level * net->n_directions + d].n_units;
    return width;
}

static size_t layer_state(const gw_layer *layer, int32_t size) {
    return (layer->cell == GW_LSTM ? 2u : 1u) * (size_t)size * (size_t)GW_PADDED(layer->n_units);
}

int32_t gw_network_width(const gw_network *net) {
    return net->has_head ? net->head.rows : level_width(net, net->n_levels - 1);
}

static size_t layers_state(const gw_network *net, int32_t size) {
    size_t total = 0;
    for (int32_t i = 0; i < net->n_levels * net->n_directions; i++) total += layer_state(&net->layers[i], size);
    return total;
}

static int pools(const gw_network *net) { return net->final >= GW_MEAN; }

size_t gw_network_state(const gw_network *net, int32_t size) {
    const size_t pool = pools(net) ? 1 + (size_t)level_width(net, net->n_levels - 1) : 0;
    return layers_state(net, size) + (size_t)size * pool;
}

/* The layer that begins a single step before the others do, or NULL: see gw_layer_ahead(). */
static const gw_layer *layer_ahead(const gw_network *net, int32_t steps) {
    const gw_layer *last = &net->layers[net->n_levels * net->n_directions - 1];
    const int64_t weights = (int64_t)(last->w_hh.rows + last->w_hn.rows) * last->w_hh.cols;
    return steps == 1 && net->n_directions == 1 && weights >= AHEAD_FROM ? last : NULL;
}

/* Scratch of one part: two (T, n, width) buffers that levels write in turn, then `order` and `sorted` (n each), then
 * what the layer that runs ahead needs, and what one kernel at a time needs. All begin at whole vectors. */
static size_t hidden_floats(const gw_network *net, int32_t steps, int32_t n) {
    size_t width = 0;
    for (int32_t level = 0; level < net->n_levels; level++) width = larger(width, (size_t)level_width(net, level));
    return GW_PADDED((size_t)steps * (size_t)n * width);
}

static size_t ahead_floats(const gw_network *net, int32_t steps, int32_t n) {
    const gw_layer *ahead = layer_ahead(net, steps);
    if (!ahead) return 0;
    return GW_PADDED(net->kernels->layer_scratch(ahead, steps, n)) + (size_t)n * (size_t)GW_PADDED(ahead->w_ih.rows);
}

static size_t part_scratch(const gw_network *net, int32_t steps, int32_t n) {
    size_t kernel = net->has_head ? net->kernels->product_scratch(&net->head, steps * n) : 0;
    for (int32_t i = 0; i < net->n_levels * net->n_directions; i++)
        kernel = larger(kernel, net->kernels->layer_scratch(&net->layers[i], steps, n));
    return 2 * hidden_floats(net, steps, n) + GW_PADDED(2 * (size_t)n) + ahead_floats(net, steps, n) +
           GW_PADDED(kernel);
}

static size_t shared_scratch(const gw_network *net, const gw_call *call) {
    const size_t items = (size_t)call->steps * (size_t)call->size;
    return net->n_words ? GW_PADDED(items * (net->embedding ? (size_t)net->n_in + 1 : 1)) : 0;
}

static int32_t largest_part(const gw_call *call) {
    const int parts = n_parts(call);
    return parts > 1 ? (call->size + parts - 1) / parts : call->size;
}

/* The sequence that a part begins with. A step of a few neurons takes as long as some divisions. */
static int32_t first_of(const gw_call *call, int parts, int part) {
    return parts > 1 ? (int32_t)((int64_t)call->size * part / parts) : part * call->size;
}

size_t gw_network_scratch(const gw_network *net, const gw_call *call) {
    return shared_scratch(net, call) + (size_t)n_parts(call) * part_scratch(net, call->steps, largest_part(call));
}

/* Whether sequence a comes after b: shorter, or as long and later. No two are equal, so any sort keeps equals in
 * their order. */
static int comes_after(const int32_t *lengths, int32_t a, int32_t b) {
    return lengths[a] < lengths[b] || (lengths[a] == lengths[b] && a > b);
}

/* Lets order[at] sink in a heap of n whose root comes last of all. */
static void sink(int32_t *order, int32_t at, int32_t n, const int32_t *lengths) {
    const int32_t moved = order[at];
    for (int32_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && comes_after(lengths, order[child + 1], order[child])) child++;
        if (!comes_after(lengths, order[child], moved)) break;
        order[at] = order[child];
        at = child;
    }
    order[at] = moved;
}

/* Longest first, equals in their order: a heap sort, which needs no memory and n log n steps whatever comes. */
static void sort_by_length(int32_t n, const int32_t *lengths, int32_t *order, int32_t *sorted) {
    int falling = 1; /* as packed sequences come */
    for (int32_t b = 0; b < n; b++) {
        order[b] = b;
        falling &= b == 0 || lengths[b - 1] >= lengths[b];
    }
    for (int32_t at = falling ? 0 : n / 2; at-- > 0;) sink(order, at, n, lengths);
    for (int32_t end = falling ? 0 : n - 1; end > 0; end--) {
        const int32_t last = order[0];
        order[0] = order[end];
        order[end] = last;
        sink(order, 0, end, lengths);
    }
    for (int32_t b = 0; b < n; b++) sorted[b] = lengths[order[b]];
}

/* h (n, width) of the top level's last state. */
static void final_output(const gw_network *net, int32_t n, const float *const *s, float *to, ptrdiff_t stride) {
    const gw_layer *top = net->layers + (net->n_levels - 1) * net->n_directions;
    for (int32_t d = 0; d < net->n_directions; to += top[d].n_units, d++)
        for (int32_t b = 0; b < n; b++)
            for (int32_t j = 0; j < top[d].n_units; j++)
                to[b * stride + j] = s[d][(ptrdiff_t)b * GW_PADDED(top[d].n_units) + j] *
                                     (top[d].scale ? top[d].scale[j] : 1.0f);
}

void gw_pool(int32_t final, int32_t steps, int32_t size, int32_t width, const float *x, ptrdiff_t time,
             ptrdiff_t batch, const int32_t *lengths, float *state, float *y, ptrdiff_t ldy) {
    const size_t bytes = sizeof(float) * (size_t)width;
    for (int32_t b = 0; b < size; b++, x += batch, state += 1 + width, y += ldy) {
        const int32_t length = lengths ? lengths[b] : steps;
        float *const pooled = state + 1;
        if (final != GW_MAX) {
            *state = gw_pool_mean(*state, length, width, x, time, pooled);
        } else {
            if (*state == 0) memcpy(pooled, x, bytes);
            gw_pool_max(length, width, x, time, pooled);
            *state += (float)length;
        }
        memcpy(y, *state == 0 ? x : pooled, bytes);
        if (final == GW_SUM && *state > 0) gw_pool_sum(*state, width, pooled, y);
    }
}

/* x: (steps, n, width), contiguous. Products want one distance between vectors, so the longer axis goes inside. */
static void apply_head(const gw_network *net, int32_t steps, int32_t n, const float *x, const gw_steps *y,
                       float *scratch) {
    const gw_matrix *w = &net->head;
    const ptrdiff_t width = w->cols;
    if (y->time == n * y->batch)
        net->kernels->product(w, net->head_bias, steps * n, x, width, y->data, y->batch, scratch);
    else if (steps > n)
        for (int32_t b = 0; b < n; b++)
            net->kernels->product(w, net->head_bias, steps, x + b * width, n * width, y->data + b * y->batch, y->time,
                                  scratch);
    else
        for (int32_t t = 0; t < steps; t++)
            net->kernels->product(w, net->head_bias, n, x + t * n * width, width, y->data + t * y->time, y->batch,
                                  scratch);
    if (net->softmax)
        for (int32_t t = 0; t < steps; t++)
            for (int32_t b = 0; b < n; b++) net->kernels->softmax(1, w->rows, y->data + t * y->time + b * y->batch);
}

typedef struct {
    const gw_network *net;
    const gw_call *call;
    const gw_const_steps *x;
    const gw_words *words; /* data is NULL where the network reads x */
    float *scratch;        /* (parts, part_scratch) */
    int parts;
    size_t part_scratch;
} shared_work;

/* All levels for the sequences of one part. */
static void run_part(void *context, int part) {
    const shared_work *work = context;
    const gw_network *net = work->net;
    const gw_call *call = work->call;
    const int32_t begin = first_of(call, work->parts, part), n = first_of(call, work->parts, part + 1) - begin;
    const size_t hidden = hidden_floats(net, call->steps, largest_part(call));
    float *const buffers = work->scratch + (size_t)part * work->part_scratch;
    int32_t *const order = (int32_t *)(buffers + 2 * hidden), *const sorted = order + n;
    const gw_layer *const ahead = layer_ahead(net, call->steps);
    float *const begun = buffers + 2 * hidden + GW_PADDED(2 * n);
    float *const scratch = begun + ahead_floats(net, call->steps, n);
    const gw_steps y = {call->y.data + begin * call->y.batch, call->y.time, call->y.batch};
    const float *last_state[2] = {NULL, NULL};
    gw_batch batch = {.steps = call->steps, .size = n, .phase = call->phase};
    gw_const_steps x = *work->x;
    gw_words words = *work->words;
    float *state = call->state;

    if (call->lengths) {
        sort_by_length(n, call->lengths + begin, order, sorted);
        batch.lengths = sorted;
        batch.order = order;
    }
    if (words.data)
        words.data += begin * words.batch;
    else
        x.data += begin * x.batch;
    if (ahead) {
        const size_t below = layers_state(net, call->size) - layer_state(ahead, call->size);
        net->kernels->layer_ahead(ahead, &batch, net->n_levels == 1 && words.data ? &words : NULL,
                                  state + below + begin * (ptrdiff_t)GW_PADDED(ahead->n_units), begun);
    }
    for (int32_t level = 0; level < net->n_levels; level++) {
        const int top = level == net->n_levels - 1;
        const ptrdiff_t width = level_width(net, level);
        gw_steps out = {buffers + (size_t)(level % 2) * hidden, n * width, width};
        if (top && net->final == GW_LAST_STATE)
            out.data = NULL;
        else if (top && !net->final && !net->has_head)
            out = y;
        for (int32_t d = 0; d < net->n_directions; d++) {
            const gw_layer *layer = &net->layers[level * net->n_directions + d];
            const ptrdiff_t padded = GW_PADDED(layer->n_units);
            float *s = state + begin * padded, *c = s + call->size * padded;
            gw_steps to = out;
            if (d && to.data) to.data += net->layers[level * net->n_directions].n_units;
            batch.reverse = d;
            batch.ahead = layer == ahead;
            net->kernels->layer_run(layer, &batch, &x, level == 0 && words.data ? &words : NULL, s, c, &to,
                                    layer == ahead ? begun : scratch);
            state += layer_state(layer, call->size);
            if (top) last_state[d] = s;
        }
        x = (gw_const_steps){out.data, out.time, out.batch};
    }
    if (net->final) {
        const int32_t width = level_width(net, net->n_levels - 1);
        float *const one = net->has_head ? buffers + (size_t)(net->n_levels % 2) * hidden : y.data;
        const ptrdiff_t stride = net->has_head ? width : y.batch;
        if (pools(net))
            gw_pool(net->final, call->steps, n, width, x.data, x.time, x.batch,
                    call->lengths ? call->lengths + begin : NULL, state + begin * (ptrdiff_t)(1 + width), one, stride);
        else
            final_output(net, n, last_state, one, stride);
        if (net->has_head) apply_head(net, 1, n, one, &y, scratch);
    } else if (net->has_head) {
        apply_head(net, call->steps, n, x.data, &y, scratch);
    }
}

size_t gw_network_run(const gw_network *net, const gw_call *call, float *scratch) {
    const size_t items = (size_t)call->steps * (size_t)call->size;
    const ptrdiff_t time = call->batch_first ? 1 : call->size, sequence = call->batch_first ? call->steps : 1;
    gw_const_steps x = call->x;
    gw_words words = {NULL, time, sequence};
    if (net->n_words) {
        int32_t *const rows = (int32_t *)scratch;
        const size_t good = gw_remap(net->remap, net->n_words, items, call->ids, rows);
        if (good < items) return good;
        if (net->embedding) {
            float *const vectors = scratch + items;
            gw_embed(net->embedding, net->n_in, items, rows, vectors);
            x = (gw_const_steps){vectors, time * net->n_in, sequence * net->n_in};
        } else {
            words.data = rows;
        }
    }
    shared_work work = {net, call, &x, &words, scratch + shared_scratch(net, call), n_parts(call), 0};
    if (work.parts == 1) {
        run_part(&work, 0);
    } else {
        work.part_scratch = part_scratch(net, call->steps, largest_part(call));
        gw_parallel(work.parts, run_part, &work);
    }
    return items;
}
