/* A chain of embedding, recurrent layers and linear head, run in one call, on several threads if asked. */
#ifndef GW_NETWORK_H
#define GW_NETWORK_H

#include "dispatch.h"

/* What the output is: one vector for every step, or one for a sequence: the last state of the top level (every
 * direction), or the mean, maximum or sum over its steps. */
enum { GW_EVERY_STEP = 0, GW_LAST_STATE = 1, GW_MEAN = 2, GW_MAX = 3, GW_SUM = 4 };

/* Levels follow one another; with two directions the second runs backwards and its output stands after the first's.
 * Input are word ids, where n_words > 0, else vectors of n_in floats. Words meet an embedding (V', n_in), or, where
 * that is NULL, the tables of the first level. */
typedef struct {
    const gw_kernels *kernels;
    int32_t n_in, n_words;  /* n_words: V */
    const int32_t *remap;   /* (V) row of the table, -1 for a removed word, or NULL: all V rows are there */
    const float *embedding; /* (V', n_in) or NULL */
    int32_t n_levels, n_directions;
    const gw_layer *layers; /* (n_levels, n_directions) */
    int32_t final;          /* nonzero: one output for a sequence, which is what the number says above */
    int32_t has_head, softmax;
    gw_matrix head;         /* (O, width of the top level) */
    const float *head_bias; /* (O) */
} gw_network;

/* One call. The state of every layer and direction in turn: s (B, P), then for the LSTM c (B, P); at the end that of
 * gw_pool(), if there is one. */
typedef struct {
    int32_t steps, size;    /* T, B */
    gw_const_steps x;       /* vectors, if n_words is 0 */
    const int64_t *ids;     /* T * B word ids, else; */
    int32_t batch_first;    /*   nonzero: (B, T), else (T, B) */
    const int32_t *lengths; /* (B) in 0..T, in any order, or NULL: all T */
    float *state;           /* gw_network_state(B) floats, read and overwritten */
    gw_steps y;             /* gw_network_width() floats per step, or per sequence if `final` */
    int32_t threads;        /* at most this many */
    int32_t phase;          /* see gw_batch */
} gw_call;

/* Mean, maximum or sum over the steps of every sequence, and over those of earlier calls. The state (B, 1 + width) is
 * how many those were and what they were pooled to, for a sum their mean; it is read and overwritten. x: (T, B, width),
 * `time` and `batch` apart; lengths: (B) or NULL: all T; y: (B, width), ldy apart. A sequence that never had a step gives
 * its first position, which is padding. */
void gw_pool(int32_t final, int32_t steps, int32_t size, int32_t width, const float *x, ptrdiff_t time,
             ptrdiff_t batch, const int32_t *lengths, float *state, float *y, ptrdiff_t ldy);

int32_t gw_network_width(const gw_network *net);
size_t gw_network_state(const gw_network *net, int32_t size);
size_t gw_network_scratch(const gw_network *net, const gw_call *call); /* in floats */

/* Returns T * B, or the position of the first word id outside 0..V-1; then nothing was computed. */
size_t gw_network_run(const gw_network *net, const gw_call *call, float *scratch);

#endif
