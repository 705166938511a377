/* Small functions: the file of a model has those that it calls. An empty line ends each.
 * No name may end as the model's own do, _reset _step _run _load _state: the user chooses how those begin. */

/* The n channels that are read, of every vector. */
static void pick(int32_t steps, int32_t n, const int32_t *which, const float *x, int32_t width, float *y) {
    for (int32_t t = 0; t < steps; t++)
        for (int32_t j = 0; j < n; j++) y[t * n + j] = x[t * width + which[j]];
}

/* n channels go to their places among all; the others are zero. */
static void widen(int32_t steps, int32_t n, const int32_t *places, const float *x, int32_t width, float *y) {
    for (int32_t t = 0; t < steps; t++) {
        for (int32_t j = 0; j < width; j++) y[t * width + j] = 0;
        for (int32_t j = 0; j < n; j++) y[t * width + places[j]] = x[t * n + j];
    }
}

/* y - log sum exp(y) along the middle one of three axes, in place. */
static void log_softmax(int32_t outer, int32_t n, int32_t inner, float *y) {
    for (int32_t o = 0; o < outer; o++)
        for (int32_t i = 0; i < inner; i++) {
            float *x = y + o * n * inner + i, top = x[0], sum = 0;
            for (int32_t j = 1; j < n; j++) top = x[j * inner] > top ? x[j * inner] : top;
            for (int32_t j = 0; j < n; j++) sum += expf(x[j * inner] - top);
            for (int32_t j = 0; j < n; j++) x[j * inner] -= top + logf(sum);
        }
}

/* The row of a word; -1: it was removed. */
static int32_t find_row(const uint16_t *kept, int32_t n, int32_t word) {
    int32_t low = 0, high = n;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if ((int32_t)kept[middle] < word)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && (int32_t)kept[low] == word ? low : -1;
}

/* The row of a word; -1: it was removed. */
static int32_t find_wide_row(const int32_t *kept, int32_t n, int32_t word) {
    int32_t low = 0, high = n;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if ((int32_t)kept[middle] < word)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && (int32_t)kept[low] == word ? low : -1;
}

static void run_layer(const gw_layer *layer, int32_t size, int32_t steps, const int32_t *length, int32_t reverse,
                      const float *x, ptrdiff_t width, float *s, float *c, float *y, ptrdiff_t out_width,
                      float *scratch) {
    const gw_batch batch = {.steps = steps, .size = size, .reverse = reverse, .lengths = length};
    const gw_const_steps in = {x, width, width * steps};
    const gw_steps out = {y, out_width, out_width * steps};
    gw_layer_run(layer, &batch, &in, NULL, s, c, &out, scratch);
}

static void run_words(const gw_layer *layer, int32_t size, int32_t steps, const int32_t *length, int32_t reverse,
                      const int32_t *rows, float *s, float *c, float *y, ptrdiff_t out_width,
                      float *scratch) {
    const gw_batch batch = {.steps = steps, .size = size, .reverse = reverse, .lengths = length};
    const gw_words in = {rows, 1, steps};
    const gw_steps out = {y, out_width, out_width * steps};
    gw_layer_run(layer, &batch, NULL, &in, s, c, &out, scratch);
}

/* The first states of n of `width` neurons: s = h / scale, and 0 where the scale is. */
static void enter(int32_t size, int32_t n, int32_t width, const int32_t *which, const float *scale, const float *h,
                  float *s) {
    for (; size > 0; size--, h += width, s += GW_PADDED(n))
        for (int32_t j = 0; j < n; j++) {
            const float value = h[which ? which[j] : j];
            s[j] = !scale ? value : scale[j] != 0 ? value / scale[j] : 0;
        }
}

/* h = s * scale of n neurons, in their places among all. */
static void leave(int32_t size, int32_t n, int32_t width, const int32_t *which, const float *scale, const float *s,
                  float *h) {
    for (; size > 0; size--, h += width, s += GW_PADDED(n)) {
        for (int32_t j = 0; j < width; j++) h[j] = 0;
        for (int32_t j = 0; j < n; j++) h[which ? which[j] : j] = scale ? s[j] * scale[j] : s[j];
    }
}

/* The first of the largest. */
static int32_t first_largest(int32_t n, const float *x) {
    int32_t best = 0;
    for (int32_t j = 1; j < n; j++)
        if (x[j] > x[best]) best = j;
    return best;
}

/* exp(y) / sum exp(y) along the middle one of three axes, in place. */
static void softmax(int32_t outer, int32_t n, int32_t inner, float *y) {
    for (int32_t o = 0; o < outer; o++)
        for (int32_t i = 0; i < inner; i++) {
            float *x = y + o * n * inner + i, top = x[0], sum = 0;
            for (int32_t j = 1; j < n; j++) top = x[j * inner] > top ? x[j * inner] : top;
            for (int32_t j = 0; j < n; j++) sum += x[j * inner] = expf(x[j * inner] - top);
            for (int32_t j = 0; j < n; j++) x[j * inner] /= sum;
        }
}

static float larger(float a, float b) { return a > b || a != a ? a : b; }

static float smaller(float a, float b) { return a < b || a != a ? a : b; }

/* log(exp(a) + exp(b)) */
static float log_add(float a, float b) {
    return a == b ? a + 0.693147181f : (a > b ? a : b) + log1pf(expf(-fabsf(a - b)));
}

static int32_t floor_div(int32_t a, int32_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
