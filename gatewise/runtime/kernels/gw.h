/* gatewise kernels: compact recurrent networks in C99.
 *
 * A compact layer computes live gates only; constant gates are stored as one number. All functions are reentrant,
 * allocate nothing and keep no global state; memory comes from the caller, matrices in the arrangement below.
 *
 * Letters in shapes: B sequences, T steps, K neurons, R live gate rows, G gates per neuron (LSTM 4: i f g o;
 * GRU 3: r u n), P = K rounded up to a multiple of 16. Everything is row-major and contiguous unless a stride says
 * otherwise; strides count elements, not bytes. No pointer needs alignment; 64 bytes make it faster.
 */
#ifndef GW_H
#define GW_H

#include <stddef.h>
#include <stdint.h>

/* The engine compiles gw.c once per instruction set and picks one at run time (dispatch.h); an embedded program
 * compiles it once, without GW_ISA, and calls the functions by their plain names. */
#ifdef GW_ISA
#define GW_JOIN(name, isa) name##_##isa
#define GW_EXPAND(name, isa) GW_JOIN(name, isa)
#define GW_NAME(name) GW_EXPAND(name, GW_ISA)
#define gw_product GW_NAME(gw_product)
#define gw_product_scratch GW_NAME(gw_product_scratch)
#define gw_layer_ahead GW_NAME(gw_layer_ahead)
#define gw_layer_run GW_NAME(gw_layer_run)
#define gw_layer_scratch GW_NAME(gw_layer_scratch)
#define gw_softmax GW_NAME(gw_softmax)
#define gw_map GW_NAME(gw_map)
#endif

/* A small network is compiled for its sizes: its file defines GW_INSIDE and has the kernels in it, where the compiler
 * sees what they are called with. */
#ifdef GW_INSIDE
#define GW_API static inline
#else
#define GW_API
#endif
#if defined(GW_INSIDE) && defined(__GNUC__)
#define GW_FLAT __attribute__((flatten)) /* all that it calls becomes part of it */
#else
#define GW_FLAT
#endif

#define GW_LAYOUT 8 /* raised with every struct, meaning or arrangement that changes; LAYOUT in arrangement.py follows */
#define GW_PANEL 64 /* rows of a dense matrix that lie interleaved */
#define GW_SLICE 16 /* rows of a sparse or masked matrix that lie interleaved */
#define GW_BLOCK 16 /* neurons whose live gates share one word of bits; states are padded to it */

/* A matrix (rows, cols) in one of three arrangements, made once by arrangement.py.
 *
 * Dense, start == NULL. Rows p*64 .. p*64+63 form a panel, stored as (cols, 64): column after column. The last panel
 * is stored as (cols, last): the rows that are left, or more for the sake of alignment. 16 floats follow, because
 * kernels read whole vectors and ignore the lanes past the last row.
 *
 * Sparse. Rows are sorted by their number of nonzeros and cut into S slices of 16. Slice q holds entries
 * start[q] .. start[q+1]-1, each 16 values with their columns, one lane per row; short rows are filled with 0 * x[0].
 *
 * Masked, row == NULL. Slice q is rows 16*q .. 16*q+15. Bit l of column[q * cols + j] says whether entry j of row
 * 16*q + l is not zero; values[start[q]] and on are those entries, column after column.
 *
 * Every form holds floats, or bytes with one scale per row, whose sums are floats all the same. A dense one may also
 * hold words, in the engine only: 4 columns of a row as bytes of code + 128, from the lowest columns 0, 2, 1, 3; panels
 * are then (words of a row, 64).
 */
typedef struct {
    int32_t rows, cols;
    int32_t last;           /* dense: distance between columns of the last panel */
    const float *values;    /* dense: panels + 16; sparse: (start[S], 16); masked: (start[S]); or NULL: bytes */
    const int8_t *codes;    /* the same as bytes, or NULL: floats */
    const float *scale;     /* (rows) weight = code * scale of its row; for bytes only */
    const int32_t *start;   /* (S + 1), or NULL: dense */
    const uint16_t *column; /* sparse: (start[S], 16); masked: (S, cols), bits */
    const int32_t *row;     /* sparse: (rows), the row held by lane i % 16 of slice i / 16; or NULL: masked */
    const uint32_t *joined; /* dense: panels + 16 of words, or NULL: floats or bytes */
} gw_matrix;

enum { GW_LSTM = 0, GW_GRU = 1 };
enum { GW_SIGMOID = 0, GW_HARD_SIGMOID = 1 }; /* hard: clip(0.2 x + 0.5, 0, 1) */

/* One layer and direction, with every group variable folded into its matrices.
 *
 *     LSTM   c' = f*c + i*g        s' = o * tanh(c')                             h' = s' * scale
 *     GRU    n  = tanh(in_n + b_in + r*(rec_n + b_hn))    s' = u*s + (1-u)*n     h' = s' * scale
 *
 * Rows are the live gates in ascending order of gate * K + neuron. What a lane of a constant gate holds is act(bias)
 * in `fixed`; for the GRU's candidate it is b_in, with b_hn in `fixed_hn`, because without a row it still follows r.
 */
typedef struct {
    int32_t cell;           /* GW_LSTM or GW_GRU */
    int32_t squash;         /* activation of all gates but g and n */
    int32_t n_units;        /* K */
    int32_t gate_start[4];  /* first row of each gate */
    const int32_t *inputs;  /* (n_in) which entries of x are read, or NULL: the first n_in */
    const int32_t *reads;   /* (n_rec) which neurons are read recurrently, or NULL: all */
    gw_matrix w_ih;         /* (R, n_in) */
    gw_matrix w_hh;         /* (R, n_rec); GRU: the rows of r and u only */
    gw_matrix w_hn;         /* (R_n, n_rec) GRU: the rows of n; LSTM: empty */
    const float *bias;      /* (R); GRU candidate: b_in */
    const float *bias_hn;   /* (R_n) GRU: b_hn of the rows of n */
    const uint16_t *live;   /* (G, P/16) bit l of word q: the gate of neuron 16*q + l is live */
    const float *fixed;     /* (G, P) */
    const float *fixed_hn;  /* (P) GRU only */
    const float *scale;     /* (K), or NULL: 1 */
    const float *table;     /* (V', R) bias + w_ih * embedding of each word, or NULL: bytes, or the layer reads vectors */
    const int8_t *table_codes; /* (V', R) the same as bytes, or NULL */
    const float *table_scale;  /* (V') entry = code * scale of its word; for bytes only */
} gw_layer;

/* B sequences of up to T steps. */
typedef struct {
    int32_t steps, size;    /* T, B */
    int32_t reverse;        /* nonzero: each sequence runs from its last step to its first */
    int32_t phase;          /* steps done before, or anything: odd and even steps walk the weights in opposite ways */
    const int32_t *lengths; /* (B) in 0..T, never rising, or NULL: all T */
    const int32_t *order;   /* (B) row b here is row order[b] of input, output and state, or NULL: row b */
    int32_t ahead;          /* nonzero: gw_layer_ahead() has begun this step */
} gw_batch;

/* Vectors of step t and sequence b begin at data + t * time + b * batch. */
typedef struct {
    float *data;
    ptrdiff_t time, batch;
} gw_steps;

typedef struct {
    const float *data;
    ptrdiff_t time, batch;
} gw_const_steps;

typedef struct {
    const int32_t *data; /* one row of a table for each step and sequence; -1: a removed word */
    ptrdiff_t time, batch;
} gw_words;

#define GW_PADDED(n) (((n) + GW_BLOCK - 1) / GW_BLOCK * GW_BLOCK)

/* y = x w^T + bias, or y += x w^T where bias is NULL. x: m vectors of w.cols floats, ldx apart; y: m vectors of w.rows,
 * ldy apart; bias: (w.rows); scratch: gw_product_scratch(w, m) floats, NULL if that is 0. */
GW_API void gw_product(const gw_matrix *w, const float *bias, int32_t m, const float *x, ptrdiff_t ldx, float *y,
                ptrdiff_t ldy, float *scratch);
GW_API size_t gw_product_scratch(const gw_matrix *w, int32_t m);

/* Runs a layer over a batch. Give x, or, where the layer has a table, words; the other may be NULL.
 * s and c are read and overwritten, both (B, P); c is not used by the GRU. h goes to y, where y->data is not NULL,
 * and is 0 past the end of a sequence. scratch: gw_layer_scratch() floats, which is enough for
 * fewer steps and smaller batches too. One step of a stream is T = 1. */
GW_API void gw_layer_run(const gw_layer *layer, const gw_batch *batch, const gw_const_steps *x, const gw_words *words,
                  float *s, float *c, const gw_steps *y, float *scratch);
GW_API size_t gw_layer_scratch(const gw_layer *layer, int32_t steps, int32_t batch);

/* Begins a single step (T = 1): half of its recurrent products, which need no input. Called before all other layers
 * for the last one of a network, it finds those weights in the cache, where the step before left them. Then
 * gw_layer_run() with batch->ahead set and the same scratch does the rest. That has B * (R padded to 16) floats more. */
GW_API void gw_layer_ahead(const gw_layer *layer, const gw_batch *batch, const gw_words *words, const float *s,
                    float *scratch);

/* Rows of word ids through remap (n_words), NULL: unchanged; -1 marks a removed word.
 * Returns the position of the first id outside 0..n_words-1, or n if there is none. */
GW_API size_t gw_remap(const int32_t *remap, int64_t n_words, size_t n, const int64_t *ids, int32_t *words);

/* y (n, dim) = rows of embedding (V', dim); zeros for -1. */
GW_API void gw_embed(const float *embedding, int32_t dim, size_t n, const int32_t *words, float *y);

/* The same from a dense or masked matrix (V', dim), which may be one that is multiplied, too. */
GW_API void gw_embed_matrix(const gw_matrix *embedding, size_t n, const int32_t *words, float *y);

/* The same from bytes, codes (V', dim) times scale (V'). */
GW_API void gw_embed_int8(const int8_t *codes, const float *scale, int32_t dim, size_t n, const int32_t *words, float *y);

/* exp(y) / sum(exp(y)) along each of m rows of n, in place. */
GW_API void gw_softmax(int32_t m, int32_t n, float *y);

/* y (n) = f(x), for tables of constant gates and for tests. */
enum { GW_F_SIGMOID = 0, GW_F_HARD_SIGMOID = 1, GW_F_TANH = 2, GW_F_EXP = 3 };
GW_API void gw_map(int32_t f, size_t n, const float *x, float *y);

#endif
