/* Nothing may depend on what memory holds before. */
static int begin(model_state *m) {
    memset(m, 0xff, sizeof *m);
#ifdef MODEL_WEIGHT_BYTES
    return read_weights(m);
#else
    model_reset(m);
    return MODEL_OK;
#endif
}

