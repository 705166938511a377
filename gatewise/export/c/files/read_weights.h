/* The weight file of this folder on a machine that has files; others point model_load() to flash or external memory. */

#include <stdio.h>

#include "model.h"

static uint32_t weight_memory[(MODEL_WEIGHT_BYTES + 3) / 4 + 1]; /* room for one more, to notice a longer file */

static int read_weights(model_state *m) {
    FILE *file = fopen("model.bin", "rb");
    size_t size;
    if (!file) return MODEL_BAD_SIZE;
    size = fread(weight_memory, 1, sizeof weight_memory, file);
    fclose(file);
    return model_load(m, weight_memory, size);
}
