/* How near the kernels come to what the machine can do, on the structures of the paper's W+G+N rows.
 *
 *     cc -std=c99 -O3 -march=native -ffp-contract=fast -I gatewise/runtime/kernels benchmarks/kernels.c \
 *        gatewise/runtime/kernels/gw.c gatewise/runtime/kernels/words.c -o kernels && ./kernels
 *
 * One thread. First the roofline: multiply-adds per second from registers, bytes per second read from each cache.
 * Then the recurrent part alone, random weights with exactly the paper's counts: one step of one sequence, a sequence,
 * and twenty sequences at once. "of peak" is against the multiply-adds; "weights" is how fast a step reads its weights,
 * to be held against the bandwidth of the cache that fits them. Each number is the lowest tenth of blocks of
 * calls, since others may share the machine.
 */
#define _DEFAULT_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "gw.h"
#include "vector.h"

enum { BLOCKS = 41, MAX_LAYERS = 2 };

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds per call: the lowest tenth of blocks, each long enough for the clock; others may share the machine. */
static double timed(void (*call)(void *), void *context) {
    double block[BLOCKS];
    int calls = 1;
    for (;; calls *= 2) {
        const double start = seconds();
        for (int i = 0; i < calls; i++) call(context);
        if (seconds() - start > 2e-3) break;
    }
    for (int b = 0; b < BLOCKS; b++) {
        const double start = seconds();
        for (int i = 0; i < calls; i++) call(context);
        block[b] = (seconds() - start) / calls;
    }
    qsort(block, BLOCKS, sizeof *block, by_value);
    return block[BLOCKS / 10];
}

/* As the engine has it: large arrays lie in huge pages. */
static void *room(size_t bytes) {
    const size_t page = bytes >= 1 << 19 ? 1 << 21 : 64;
    char *p = malloc(bytes + 2 * page);
    if (!p) abort();
    p += (page - (uintptr_t)p % page) % page;
#ifdef __linux__
    if (page > 64) madvise(p, (bytes + page - 1) / page * page, MADV_HUGEPAGE);
#endif
    return p;
}

static float *random_floats(size_t n, float size) {
    float *p = room(sizeof(float) * (n + GW_BLOCK));
    for (size_t i = 0; i < n + GW_BLOCK; i++) p[i] = size * (2 * (float)rand() / (float)RAND_MAX - 1);
    return p;
}

/* ---- the roofline ---- */

enum { FMA_CHAINS = 12, FMA_ROUNDS = 1000 };
static volatile float sink;

static void fma_rounds(void *context) {
    const vf a = vf_all(((float *)context)[0]), b = vf_all(((float *)context)[1]);
    vf sum[FMA_CHAINS];
    for (int i = 0; i < FMA_CHAINS; i++) sum[i] = a * (float)i;
    for (int round = 0; round < FMA_ROUNDS; round++)
        for (int i = 0; i < FMA_CHAINS; i++) sum[i] = sum[i] * a + b;
    for (int i = 1; i < FMA_CHAINS; i++) sum[0] += sum[i];
    sink = vf_total(sum[0]);
}

typedef struct {
    const float *data;
    size_t n;
    int asks; /* for what comes later, which helps beyond the first level alone */
} buffer;

static void read_buffer(void *context) {
    const buffer *b = context;
    vf sum[8];
    for (int i = 0; i < 8; i++) sum[i] = vf_all(0);
    for (size_t j = 0; j < b->n; j += 8 * GW_LANES) {
        if (b->asks) fetch_later(8, b->data + j, 4096);
        for (int i = 0; i < 8; i++) sum[i] += vf_load(b->data + j + (size_t)i * GW_LANES);
    }
    for (int i = 1; i < 8; i++) sum[0] += sum[i];
    sink = vf_total(sum[0]);
}

static double roofline(void) {
    static const struct {
        const char *name;
        size_t bytes;
    } levels[] = {{"L1", 24 << 10}, {"L2", 640 << 10}, {"L3", 6 << 20}, {"memory", 256 << 20}};
    float factors[2] = {0.999f, 0.001f};
    const double peak = 2.0 * FMA_CHAINS * FMA_ROUNDS * GW_LANES / timed(fma_rounds, factors);
    printf("%d lanes, peak %.0f GFLOP/s; read", GW_LANES, peak * 1e-9);
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        buffer b = {random_floats(levels[i].bytes / 4, 1), levels[i].bytes / 4, i > 0};
        printf(" %s %.0f", levels[i].name, (double)levels[i].bytes / timed(read_buffer, &b) * 1e-9);
    }
    printf(" GB/s\n\n");
    return peak;
}

/* ---- the kernels ---- */

typedef struct {
    int32_t n_in, n_units, n_rows;
} counts;

typedef struct {
    const char *name;
    int32_t steps;
    int folded; /* the embedding is in the first layer: a row of its table replaces the input product */
    counts layer[MAX_LAYERS];
} structure;

static const structure structures[] = {
    {"word small, pruned", 35, 0, {{200, 64, 193}, {64, 115, 442}}},
    {"word small, Bayes", 35, 0, {{200, 52, 197}, {52, 108, 349}}},
    {"word large", 35, 0, {{1500, 252, 881}, {252, 394, 1418}}},
    {"word large, folded", 35, 1, {{1500, 252, 881}, {252, 394, 1418}}},
    {"char", 99, 0, {{50, 404, 1563}}},
    {"AGNews", 100, 0, {{46, 14, 39}}},
    {"IMDb", 200, 0, {{1, 4, 6}}},
};

static gw_matrix random_matrix(int32_t rows, int32_t cols) {
    const int32_t rest = rows % GW_PANEL ? rows % GW_PANEL : GW_PANEL;
    const size_t room_for = (size_t)(rows + GW_PANEL) * (size_t)cols;
    const gw_matrix w = {
        .rows = rows, .cols = cols, .last = GW_PADDED(rest), .values = random_floats(room_for, 0.1f)};
    return w; /* any numbers are an arranged matrix */
}

enum { TABLE_WORDS = 1000, AHEAD_ROWS = 1000 }; /* layers with fewer rows fit a cache */

/* An LSTM that keeps its output gates first, as the paper's do; the other live gates are drawn. */
static gw_layer random_layer(counts n, int folded) {
    const int32_t padded = GW_PADDED(n.n_units), slots = 4 * n.n_units;
    uint16_t *live = room(sizeof(uint16_t) * 4 * (size_t)padded / GW_BLOCK);
    memset(live, 0, sizeof(uint16_t) * 4 * (size_t)padded / GW_BLOCK);
    gw_layer layer = {
        .cell = GW_LSTM,
        .n_units = n.n_units,
        .w_ih = random_matrix(n.n_rows, folded ? 0 : n.n_in),
        .w_hh = random_matrix(n.n_rows, n.n_units),
        .bias = random_floats((size_t)n.n_rows, 1),
        .live = live,
        .fixed = random_floats(4 * (size_t)padded, 0.5f),
        .table = folded ? random_floats((size_t)n.n_rows * TABLE_WORDS, 1) : NULL,
    };
    int32_t left = n.n_rows, row = 0;
    for (int32_t slot = slots - 1; slot >= 0; slot--) { /* from the output gates down */
        const int32_t gate = slot / n.n_units, unit = slot % n.n_units;
        if (gate == 3 ? left > 0 : rand() % (slot + 1) < left) {
            live[gate * (padded / GW_BLOCK) + unit / GW_BLOCK] |= (uint16_t)(1 << unit % GW_BLOCK);
            left--;
        }
    }
    for (int32_t slot = 0; slot < slots; slot++) {
        const int32_t gate = slot / n.n_units, unit = slot % n.n_units;
        if (unit == 0) layer.gate_start[gate] = row;
        row += live[gate * (padded / GW_BLOCK) + unit / GW_BLOCK] >> unit % GW_BLOCK & 1;
    }
    return layer;
}

typedef struct {
    int n_layers;
    gw_layer layer[MAX_LAYERS];
    gw_batch batch;
    float *s[MAX_LAYERS], *c[MAX_LAYERS], *x, *y[MAX_LAYERS], *scratch[2]; /* of the last layer, of the others */
    int32_t *words;
    counts size[MAX_LAYERS];
} network;

static void run_network(void *context) {
    network *net = context;
    const int32_t b = net->batch.size;
    const int last = net->n_layers - 1, ahead = net->batch.steps == 1 && net->layer[last].w_hh.rows >= AHEAD_ROWS;
    const gw_words words = {net->words, b, 1};
    net->batch.phase ^= 1;
    gw_const_steps x = {net->x, (ptrdiff_t)b * net->size[0].n_in, net->size[0].n_in};
    if (ahead)
        gw_layer_ahead(&net->layer[last], &net->batch, net->layer[last].table ? &words : NULL, net->s[last],
                       net->scratch[0]);
    for (int i = 0; i <= last; i++) {
        const int32_t k = net->size[i].n_units;
        const gw_steps y = {net->y[i], (ptrdiff_t)b * k, k};
        net->batch.ahead = ahead && i == last;
        gw_layer_run(&net->layer[i], &net->batch, &x, net->layer[i].table ? &words : NULL, net->s[i], net->c[i], &y,
                     net->scratch[i < last]);
        x = (gw_const_steps){y.data, y.time, y.batch};
    }
}

static void measure(const structure *what, int32_t steps, int32_t size, const char *how, double peak) {
    network net = {.batch = {.steps = steps, .size = size}};
    const size_t items = (size_t)steps * (size_t)size;
    double products = 0, bytes = 0;
    size_t scratch = 0, begun = 0;
    for (int i = 0; i < MAX_LAYERS && what->layer[i].n_units; i++, net.n_layers++) {
        const counts n = net.size[i] = what->layer[i];
        const size_t padded = (size_t)GW_PADDED(n.n_units);
        gw_layer *layer = &net.layer[i];
        *layer = random_layer(n, i == 0 && what->folded);
        net.s[i] = random_floats((size_t)size * padded, 1);
        net.c[i] = random_floats((size_t)size * padded, 1);
        net.y[i] = random_floats(items * (size_t)n.n_units, 1);
        products += (double)n.n_rows * (layer->w_ih.cols + layer->w_hh.cols);
        bytes += 4.0 * n.n_rows * (layer->w_ih.cols + layer->w_hh.cols + 1);
        if (gw_layer_scratch(layer, steps, size) > scratch) scratch = gw_layer_scratch(layer, steps, size);
        begun = (size_t)size * GW_PADDED((size_t)n.n_rows); /* see gw_layer_ahead() */
    }
    net.x = random_floats(items * (size_t)what->layer[0].n_in, 1);
    net.words = room(sizeof(int32_t) * items);
    for (size_t i = 0; i < items; i++) net.words[i] = rand() % TABLE_WORDS;
    for (int i = 0; i < 2; i++) net.scratch[i] = random_floats(scratch + begun, 1);
    const double t = timed(run_network, &net), flops = 2 * products * (double)items / t;
    printf("%-20s %-14s %9.2f us %8.3f us/step %7.1f GFLOP/s %3.0f %% of peak", what->name, how, t * 1e6,
           t * 1e6 / (double)items, flops * 1e-9, 100 * flops / peak);
    if (items == 1) printf("   weights %6.0f kB at %4.0f GB/s", bytes * 1e-3, bytes / t * 1e-9);
    printf("\n");
}

int main(void) {
    srand(1);
    const double peak = roofline();
    for (size_t i = 0; i < sizeof structures / sizeof *structures; i++) {
        measure(&structures[i], 1, 1, "step", peak);
        measure(&structures[i], structures[i].steps, 1, "sequence", peak);
        measure(&structures[i], structures[i].steps, 20, "20 sequences", peak);
    }
    return 0;
}
