/* Recurrent layers over the products of products.h; the contract is in gw.h. */

#include "gw.h"

#include "functions.h"
#include "products.h"
#ifdef GW_ISA
#include "joined.h"
#endif

/* Rows of x whose input projections are computed as one product before the recurrence walks over them: enough for
 * full tiles, few enough for the projections to stay in the second-level cache. */
enum { CHUNK_ROWS = 96 };
/* Neurons up to which gates are activated where they are read: a pass of its own would wait for its own stores. More
 * neurons have more vectors of them than rows that are live, and without AVX-512 rows are spread in memory alone. The
 * table of functions.h spares a Cortex-M what a loop over one function is for: constants in registers. */
#ifdef GW_CUBICS
enum { AT_ONCE = INT32_MAX };
#else
enum { AT_ONCE = GW_LANES == 16 ? 32 : 0 };
#endif

void gw_product(const gw_matrix *w, const float *bias, int32_t m, const float *x, ptrdiff_t ldx, float *y,
                ptrdiff_t ldy, float *scratch) {
    const panel_range all = {0, n_panels(w), 0};
    if (letters_product(w, bias, m, x, ldx, y, ldy)) return;
    product(w, bias, m, x, ldx, y, ldy, scratch, all);
}

size_t gw_product_scratch(const gw_matrix *w, int32_t m) {
#ifdef GW_ISA
    if (w->joined) return joined_scratch(w, m);
#endif
    if (!w->start || w->codes || m < TRANSPOSE_FROM) return 0;
    return (size_t)w->cols * (w->row ? GW_SLICE : GW_PANEL);
}

#if GW_LANES > 1
/* The first n lanes, as bits. */
GW_INLINE uint32_t first_lanes(int32_t n) {
    return n <= 0 ? 0 : n >= GW_LANES ? (1u << GW_LANES) - 1 : (1u << n) - 1;
}

GW_INLINE vf squash(const gw_layer *layer, vf v) {
    return layer->squash == GW_SIGMOID ? vf_sigmoid(v) : vf_hard_sigmoid(v);
}

/* act(row) in place: rows of g through tanh, rows of n unchanged, all others through the sigmoid. Whole vectors only,
 * each read and written once: a load that overlaps the masked store before it would wait for that store. */
static void activate(const gw_layer *layer, float *pre) {
    const int32_t from = layer->gate_start[2], to = layer->gate_start[3], lstm = layer->cell == GW_LSTM;
    const int32_t end = lstm ? layer->w_ih.rows : from;
    int32_t j = 0;
    while (j < end) {
        for (; j < end && (j + GW_LANES <= from || j >= to); j += GW_LANES)
            vf_store(pre + j, squash(layer, vf_load(pre + j)));
        for (; j < end && j < to; j += GW_LANES) {
            const uint32_t others = first_lanes(to - j) & ~first_lanes(from - j);
            const vf v = vf_load(pre + j), act = lstm ? vf_tanh(v) : v;
            vf_store(pre + j, others == first_lanes(GW_LANES) ? act : vf_select(others, act, squash(layer, v)));
        }
    }
}
#else
/* Gate by gate, so that a loop has one function and its constants stay in registers. */
static void squash_rows(const gw_layer *layer, float *row, const float *end) {
    if (layer->squash == GW_SIGMOID)
        for (; row < end; row++) *row = vf_sigmoid(*row);
    else
        for (; row < end; row++) *row = vf_hard_sigmoid(*row);
}

static void activate(const gw_layer *layer, float *pre) {
    float *const from = pre + layer->gate_start[2], *const to = pre + layer->gate_start[3];
    squash_rows(layer, pre, from);
    if (layer->cell != GW_LSTM) return;
    for (float *row = from; row < to; row++) *row = vf_tanh(*row);
    squash_rows(layer, to, pre + layer->w_ih.rows);
}
#endif

/* One gate of all neurons in turn: where its rows go on, which neurons have one, and what the others hold. */
typedef struct {
    const float *row;
    const uint16_t *live;
    const float *fixed;
} gate_walk;

static gate_walk walk(const gw_layer *layer, int k, const float *row) {
    const ptrdiff_t padded = GW_PADDED(layer->n_units);
    const gate_walk g = {row, layer->live + k * (padded / GW_BLOCK), layer->fixed + k * padded};
    return g;
}

enum { AS_IT_IS, SIGMOID, HARD_SIGMOID, TANH };

/* The gate of neurons unit .. unit + GW_LANES - 1, of rows on which `act` is still to be done. */
GW_INLINE vf next_of(gate_walk *g, int32_t unit, int act) {
    const uint32_t all = (1u << GW_LANES) - 1, live = (uint32_t)g->live[unit / GW_BLOCK] >> unit % GW_BLOCK & all;
    vf v;
    if (!live) return vf_load(g->fixed + unit);
    v = vf_load(g->row);
    if (act == SIGMOID) v = vf_sigmoid(v);
    if (act == HARD_SIGMOID) v = vf_hard_sigmoid(v);
    if (act == TANH) v = vf_tanh(v);
    if (live != all) v = vf_spread(live, v, g->row, vf_load(g->fixed + unit));
    for (uint32_t bits = live; bits; bits &= bits - 1) g->row++;
    return v;
}

GW_INLINE vf next(gate_walk *g, int32_t unit) { return next_of(g, unit, AS_IT_IS); }

/* h = s * scale of neurons unit .. unit + GW_LANES - 1, as far as there are some. */
GW_INLINE void emit(const gw_layer *layer, int32_t unit, vf s, float *y) {
    const int32_t left = layer->n_units - unit;
    if (!y) return;
    if (left >= GW_LANES)
        vf_store(y + unit, layer->scale ? s * vf_load(layer->scale + unit) : s);
    else
        vf_store_first(y + unit, layer->scale ? s * vf_load_first(layer->scale + unit, left) : s, left);
}

/* pre: (R padded), overwritten, and GW_BLOCK readable floats after it; s, c: (P); y: (K) or NULL. */
static void lstm_gates(const gw_layer *layer, float *pre, float *s, float *c, float *y) {
    const int32_t *start = layer->gate_start;
    gate_walk i = walk(layer, 0, pre + start[0]), f = walk(layer, 1, pre + start[1]);
    gate_walk g = walk(layer, 2, pre + start[2]), o = walk(layer, 3, pre + start[3]);
    const int few = layer->n_units <= AT_ONCE;
    const int squash = !few ? AS_IT_IS : layer->squash == GW_SIGMOID ? SIGMOID : HARD_SIGMOID;
    if (!few) activate(layer, pre);
    for (int32_t unit = 0; unit < layer->n_units; unit += GW_LANES) {
        const vf forget = next_of(&f, unit, squash), input = next_of(&i, unit, squash);
        const vf output = next_of(&o, unit, squash);
        const vf cell = forget * vf_load(c + unit) + input * next_of(&g, unit, few ? TANH : AS_IT_IS);
        const vf state = output * vf_tanh(cell);
        vf_store(c + unit, cell);
        vf_store(s + unit, state);
        emit(layer, unit, state, y);
    }
}

/* pre as above; rec: (R_n), the recurrent half of the candidate, and GW_BLOCK readable floats after it. */
static void gru_gates(const gw_layer *layer, float *pre, const float *rec, float *s, float *y) {
    const int32_t *start = layer->gate_start;
    gate_walk r = walk(layer, 0, pre + start[0]), u = walk(layer, 1, pre + start[1]);
    gate_walk n = walk(layer, 2, pre + start[2]), n_rec = walk(layer, 2, rec);
    n_rec.fixed = layer->fixed_hn;
    const int few = layer->n_units <= AT_ONCE;
    const int squash = !few ? AS_IT_IS : layer->squash == GW_SIGMOID ? SIGMOID : HARD_SIGMOID;
    if (!few) activate(layer, pre);
    for (int32_t unit = 0; unit < layer->n_units; unit += GW_LANES) {
        const vf reset = next_of(&r, unit, squash), update = next_of(&u, unit, squash);
        const vf candidate = vf_tanh(next(&n, unit) + reset * next(&n_rec, unit));
        const vf state = candidate + update * (vf_load(s + unit) - candidate);
        vf_store(s + unit, state);
        emit(layer, unit, state, y);
    }
}

/* Which vector of a view belongs to step `step` of the walk over sequence b. */
GW_INLINE ptrdiff_t sequence_row(const gw_batch *batch, int32_t b) { return batch->order ? batch->order[b] : b; }

GW_INLINE int32_t sequence_length(const gw_batch *batch, int32_t b) {
    return batch->lengths ? batch->lengths[b] : batch->steps;
}

GW_INLINE ptrdiff_t sequence_time(const gw_batch *batch, int32_t b, int32_t step) {
    return batch->reverse ? sequence_length(batch, b) - 1 - step : step;
}

/* Lengths never rise, so the sequences still running are the first ones. */
GW_INLINE int32_t running(const gw_batch *batch, int32_t step) {
    int32_t n = batch->size;
    if (batch->lengths)
        while (n && batch->lengths[n - 1] <= step) n--;
    return n;
}

GW_INLINE void take(const int32_t *which, int32_t n, const float *from, float *to) {
    if (!which)
        memcpy(to, from, sizeof(float) * (size_t)n);
    else
        for (int32_t j = 0; j < n; j++) to[j] = from[which[j]];
}

enum { WHOLE, AHEAD, LATE }; /* of a step's recurrent products: all, the first half of the walk, the second */

/* Half of the panels of two matrices that are walked one after the other. */
static void halve(panel_range *first, panel_range *second, int half) {
    const int32_t middle = (first->to + second->to) / 2, rest = middle - first->to;
    if ((half == AHEAD) == first->backwards) {
        first->from = middle < first->to ? middle : first->to;
        second->from = rest > 0 ? rest : 0;
    } else {
        first->to = middle < first->to ? middle : first->to;
        second->to = rest > 0 ? rest : 0;
    }
}

/* pre (n, R padded) += recurrent products of the n running sequences; rec (n, R_n): those of the GRU's candidate.
 * Weights larger than a cache are walked to and fro, so that a step begins with what the last one left there. */
static void recurrent_products(const gw_layer *layer, const gw_batch *batch, int32_t step, int32_t n, int half,
                               const float *s, float *pre, float *rec, float *scratch) {
    const int32_t n_rec = layer->w_hh.cols;
    const int gru = layer->cell == GW_GRU, backwards = (step + batch->phase) & 1;
    panel_range rows = {0, n_panels(&layer->w_hh), backwards};
    panel_range candidate = {0, gru ? n_panels(&layer->w_hn) : 0, backwards};
    ptrdiff_t lds = GW_PADDED(layer->n_units);
    float *picked = scratch;
    if (half != WHOLE) halve(&rows, &candidate, half);
    if (layer->reads || batch->order) {
        for (int32_t b = 0; b < n; b++) take(layer->reads, n_rec, s + sequence_row(batch, b) * lds, picked + (ptrdiff_t)b * n_rec);
        s = picked;
        lds = n_rec;
        scratch += (ptrdiff_t)n * n_rec;
    }
    for (int k = !gru; k < 2; k++) {
        const int joint = !gru || k == backwards;
        product(joint ? &layer->w_hh : &layer->w_hn, joint ? NULL : layer->bias_hn, n, s, lds, joint ? pre : rec,
                joint ? GW_PADDED(layer->w_ih.rows) : layer->w_hn.rows, scratch, joint ? rows : candidate);
    }
}

/* pre (n, R padded) = what every step starts from: the bias, or the row of the table of its word. */
static void start_rows(const gw_layer *layer, const gw_batch *batch, const gw_words *words, int32_t step, float *pre) {
    const int32_t rows = layer->w_ih.rows;
    for (int32_t b = 0, n = running(batch, step); b < n; b++, pre += GW_PADDED(rows)) {
        int32_t word = -1;
        if (words)
            word = words->data[sequence_time(batch, b, step) * words->time + sequence_row(batch, b) * words->batch];
        if (word >= 0 && layer->table_codes)
            gw_embed_int8(layer->table_codes, layer->table_scale, rows, 1, &word, pre);
        else
            memcpy(pre, word < 0 ? layer->bias : layer->table + (ptrdiff_t)word * rows, sizeof(float) * (size_t)rows);
    }
}

/* Input projections of steps first .. end-1, (running sequences of each step, R padded), one after the other. */
static void input_projections(const gw_layer *layer, const gw_batch *batch, const gw_const_steps *x, int32_t first,
                              int32_t end, float *pre, float *scratch) {
    const gw_matrix *w = &layer->w_ih;
    const ptrdiff_t ld = GW_PADDED(w->rows);
    int32_t m = 0;
    if (!layer->inputs && !batch->order && !batch->lengths && !batch->reverse &&
        (batch->size == 1 || end - first == 1 || x->time == batch->size * x->batch)) {
        gw_product(w, layer->bias, (end - first) * batch->size, x->data + first * x->time,
                   batch->size == 1 ? x->time : x->batch, pre, ld, scratch);
        return;
    }
    for (int32_t step = first; step < end; step++)
        for (int32_t b = 0, n = running(batch, step); b < n; b++, m++)
            take(layer->inputs, w->cols,
                 x->data + sequence_time(batch, b, step) * x->time + sequence_row(batch, b) * x->batch,
                 scratch + (ptrdiff_t)m * w->cols);
    gw_product(w, layer->bias, m, scratch, w->cols, pre, ld, scratch + (ptrdiff_t)m * w->cols);
}

/* y (n) += x, n a multiple of 16. */
static void add(ptrdiff_t n, const float *x, float *y) {
    for (ptrdiff_t j = 0; j < n; j += GW_LANES) vf_store(y + j, vf_load(y + j) + vf_load(x + j));
}

static int32_t chunk_steps(int32_t steps, int32_t batch) {
    if (steps == 1) return 1;
    const int32_t most = batch >= CHUNK_ROWS ? 1 : CHUNK_ROWS / (batch > 0 ? batch : 1);
    return steps < most ? steps : most;
}

/* Scratch: pre (chunk rows, R padded) + block, rec (B, R_n) + block, then what one product at a time needs. It takes
 * the bound on the rows of a chunk, not their number, so that a smaller batch never needs more. */
size_t gw_layer_scratch(const gw_layer *layer, int32_t steps, int32_t batch) {
    const size_t b = (size_t)batch, all = (size_t)steps * b, most = batch > CHUNK_ROWS ? b : CHUNK_ROWS;
    const size_t m = all < most ? all : most;
    const size_t input = m * (size_t)layer->w_ih.cols + gw_product_scratch(&layer->w_ih, (int32_t)m);
    const size_t rec_rows = gw_product_scratch(&layer->w_hh, batch), rec_n = gw_product_scratch(&layer->w_hn, batch);
    const size_t recurrent = b * (size_t)layer->w_hh.cols + (rec_rows > rec_n ? rec_rows : rec_n);
    return m * (size_t)GW_PADDED(layer->w_ih.rows) + GW_BLOCK + b * (size_t)layer->w_hn.rows + GW_BLOCK +
           (input > recurrent ? input : recurrent);
}

/* The parts of the scratch; `rows` are those of a chunk. In a step that began ahead, input projections have a part of
 * their own (B, R padded): they need no place in a sum that began without them, and can come before its second half. */
typedef struct {
    float *inputs, *pre, *rec, *rest;
} layer_scratch;

static layer_scratch divide(const gw_layer *layer, int32_t rows, int32_t batch, int ahead, float *scratch) {
    const ptrdiff_t ld = GW_PADDED(layer->w_ih.rows);
    layer_scratch parts = {.inputs = scratch, .pre = ahead ? scratch + batch * ld : scratch};
    parts.rec = parts.pre + rows * ld + GW_BLOCK;
    parts.rest = parts.rec + (ptrdiff_t)batch * layer->w_hn.rows + GW_BLOCK;
    return parts;
}

void gw_layer_ahead(const gw_layer *layer, const gw_batch *batch, const gw_words *words, const float *s,
                    float *scratch) {
    const layer_scratch to = divide(layer, batch->size, batch->size, 1, scratch);
    if (words)
        start_rows(layer, batch, words, 0, to.pre);
    else
        memset(to.pre, 0, sizeof(float) * (size_t)batch->size * GW_PADDED((size_t)layer->w_ih.rows));
    recurrent_products(layer, batch, 0, running(batch, 0), AHEAD, s, to.pre, to.rec, to.rest);
}

void gw_layer_run(const gw_layer *layer, const gw_batch *batch, const gw_const_steps *x, const gw_words *words,
                  float *s, float *c, const gw_steps *y, float *scratch) {
    const ptrdiff_t padded = GW_PADDED(layer->n_units), ld = GW_PADDED(layer->w_ih.rows);
    const int32_t chunk = chunk_steps(batch->steps, batch->size);
    const layer_scratch to = divide(layer, chunk * batch->size, batch->size, batch->ahead, scratch);
    for (int32_t first = 0; first < batch->steps; first += chunk) {
        const int32_t end = batch->steps - first < chunk ? batch->steps : first + chunk;
        float *now = to.pre;
        if (!words) input_projections(layer, batch, x, first, end, to.inputs, to.rest);
        for (int32_t step = first; step < end; step++) {
            const int32_t n = running(batch, step);
            if (words && !batch->ahead) start_rows(layer, batch, words, step, now);
            recurrent_products(layer, batch, step, n, batch->ahead ? LATE : WHOLE, s, now, to.rec, to.rest);
            if (!words && batch->ahead) add(n * ld, to.inputs, now);
            for (int32_t b = 0; b < n; b++, now += ld) {
                const ptrdiff_t at = sequence_row(batch, b);
                float *h = y->data ? y->data + sequence_time(batch, b, step) * y->time + at * y->batch : NULL;
                if (layer->cell == GW_LSTM)
                    lstm_gates(layer, now, s + at * padded, c + at * padded, h);
                else
                    gru_gates(layer, now, to.rec + b * (ptrdiff_t)layer->w_hn.rows, s + at * padded, h);
            }
        }
    }
    if (batch->lengths && y->data)
        for (int32_t b = 0; b < batch->size; b++)
            for (int32_t t = batch->lengths[b]; t < batch->steps; t++)
                memset(y->data + t * y->time + sequence_row(batch, b) * y->batch, 0,
                       sizeof(float) * (size_t)layer->n_units);
}

void gw_softmax(int32_t m, int32_t n, float *y) {
    for (; m > 0; m--, y += n) {
        const int32_t whole = n - n % GW_LANES;
        vf most = vf_all(y[0]), sum = vf_all(0);
        float top, total;
        int32_t j;
        for (j = 0; j < whole; j += GW_LANES) most = vf_max(most, vf_load(y + j));
        top = vf_largest(most);
        for (; j < n; j++) top = y[j] > top ? y[j] : top;
        for (j = 0; j < whole; j += GW_LANES) {
            const vf e = vf_exp(vf_load(y + j) - top);
            vf_store(y + j, e);
            sum += e;
        }
        total = vf_total(sum);
        if (j < n) {
            vf_store_first(y + j, vf_exp(vf_load_first(y + j, n - j) - top), n - j);
            for (; j < n; j++) total += y[j];
        }
        for (j = 0; j < whole; j += GW_LANES) vf_store(y + j, vf_load(y + j) * (1 / total));
        for (; j < n; j++) y[j] *= 1 / total;
    }
}

void gw_map(int32_t f, size_t n, const float *x, float *y) {
    for (size_t j = 0; j < n; j += GW_LANES) {
        const int lanes = n - j < GW_LANES ? (int)(n - j) : GW_LANES;
        const vf v = vf_load_first(x + j, lanes);
        const vf r = f == GW_F_SIGMOID        ? vf_sigmoid(v)
                     : f == GW_F_HARD_SIGMOID ? vf_hard_sigmoid(v)
                     : f == GW_F_TANH         ? vf_tanh(v)
                                              : vf_exp(v);
        vf_store_first(y + j, r, lanes);
    }
}

#ifdef GW_ISA
#include "dispatch.h"
#include "norm.h"

#define GW_TEXT(isa) #isa
#define GW_QUOTE(isa) GW_TEXT(isa)

const gw_kernels GW_NAME(gw_kernels) = {
    .isa = GW_QUOTE(GW_ISA),
    .product = gw_product,
    .product_scratch = gw_product_scratch,
    .layer_ahead = gw_layer_ahead,
    .layer_run = gw_layer_run,
    .layer_scratch = gw_layer_scratch,
    .softmax = gw_softmax,
    .layer_norm = gw_layer_norm,
    .map = gw_map,
};
#endif
