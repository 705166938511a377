/* The engine's C, called as a C program calls it: n times in a row, with nothing of Python in between. inference.py
 * compiles this file and hands it the network and the functions of network.h. */

#include <string.h>

#include "network.h"

typedef size_t (*run_function)(const gw_network *net, const gw_call *call, float *scratch);
typedef size_t (*scratch_function)(const gw_network *net, const gw_call *call);

size_t scratch_floats(scratch_function function, const gw_network *net, int32_t steps, int32_t size, int32_t threads) {
    const gw_call call = {.steps = steps, .size = size, .threads = threads};
    return function(net, &call);
}

/* Calls first .. first + n - 1, in turn with each of several inputs. x: (inputs, T, B, n_in) floats, or ids: (inputs,
 * T, B) words; y: (T, B, width), or (B, width) where the network is `final`. reset: floats of the state that every call
 * sets to zero first; 0: it goes on where the one before ended. */
void repeat(int32_t first, int32_t n, run_function run, const gw_network *net, int32_t steps, int32_t size,
            int32_t inputs, const float *x, const int64_t *ids, float *state, int32_t reset, float *y, int32_t width,
            int32_t threads, float *scratch) {
    const ptrdiff_t items = (ptrdiff_t)steps * size;
    gw_call call = {
        .steps = steps,
        .size = size,
        .state = state,
        .y = {y, net->final ? 0 : (ptrdiff_t)size * width, width},
        .threads = threads,
    };
    for (int32_t i = first; i < first + n; i++) {
        const int32_t at = i % inputs;
        call.phase = i & 1;
        if (ids)
            call.ids = ids + at * items;
        else
            call.x = (gw_const_steps){x + at * items * net->n_in, (ptrdiff_t)size * net->n_in, net->n_in};
        memset(state, 0, sizeof(float) * (size_t)reset);
        run(net, &call, scratch);
    }
}
