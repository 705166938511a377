/* A decoder that reads its own answers: a network of one direction from words to scores of all words, step by step. */
#ifndef GW_DECODE_H
#define GW_DECODE_H

#include "network.h"

/* One call. The network has a head, whose rows are words, no softmax, and is not `final`. With things to look at, the
   rows behind the words are a query of A numbers: words get the votes of all things, by the softmax of query . key. */
typedef struct {
    int32_t size;                /* B */
    int32_t start, end, longest; /* the word that begins, the one that ends (-1: none), steps at most */
    float *state;                /* gw_network_state(B) floats, read and overwritten */
    int64_t *ids;                /* (B, longest) answers; `end` from the first end on */
    int32_t threads;             /* at most this many */
    int32_t n_things, n_query;   /* T, A; without keys 0 */
    const float *keys, *votes;   /* (B, T, A), (B, T, words); NULL: it looks at nothing */
} gw_decoding;

size_t gw_decode_scratch(const gw_network *net, const gw_decoding *call); /* in floats */
void gw_decode(const gw_network *net, const gw_decoding *call, float *scratch);

#endif
