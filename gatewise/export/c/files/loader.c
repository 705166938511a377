/* CRC-32 (IEEE 802.3), four bits at a time. */
static uint32_t crc32(const unsigned char *p, size_t n) {
    static const uint32_t table[16] = {
        0x00000000u, 0x1db71064u, 0x3b6e20c8u, 0x26d930acu, 0x76dc4190u, 0x6b6b51f4u, 0x4db26158u, 0x5005713cu,
        0xedb88320u, 0xf00f9344u, 0xd6d6a3e8u, 0xcb61b38cu, 0x9b64c2b0u, 0x86d3d2d4u, 0xa00ae278u, 0xbdbdf21cu};
    uint32_t crc = 0xffffffffu;
    for (; n > 0; n--, p++) {
        crc = table[(crc ^ *p) & 15] ^ crc >> 4;
        crc = table[(crc ^ (uint32_t)*p >> 4) & 15] ^ crc >> 4;
    }
    return ~crc;
}

int model_load(model_state *m, const void *weights, size_t size) {
    uint32_t head[4]; /* magic, version, bytes, checksum */
    m->weights = NULL;
    if (!weights) return MODEL_NOT_LOADED;
    if ((uintptr_t)weights % 4) return MODEL_BAD_ALIGNMENT;
    if (size < sizeof head) return MODEL_BAD_SIZE;
    memcpy(head, weights, sizeof head);
    if (head[0] != {{ magic }}) return MODEL_BAD_MAGIC;
    if (head[1] != {{ version }}) return MODEL_BAD_VERSION;
    if (head[2] != MODEL_WEIGHT_BYTES || size != MODEL_WEIGHT_BYTES) return MODEL_BAD_SIZE;
    if (head[3] != {{ crc }}) return MODEL_OTHER_MODEL;
    if (crc32((const unsigned char *)weights + {{ header_bytes }}, size - {{ header_bytes }}) != head[3]) return MODEL_CORRUPT;
    m->weights = weights;
    model_reset(m);
    return MODEL_OK;
}

