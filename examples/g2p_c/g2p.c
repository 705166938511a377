#include "g2p.h"

#include <stdint.h>
#include <string.h>

#include "decoder/decoder.h"
#include "encoder/encoder.h"
#include "phonemes.h"

/* The encoder has done its work when the decoder begins. */
static union {
    encoder_state encoder;
    decoder_state decoder;
} memory;

/* What the word left: the first state of the decoder, and a key and votes of every letter. */
static float state[G2P_STATE], keys[(G2P_LETTERS + 1) * G2P_KEY], votes[(G2P_LETTERS + 1) * G2P_SOUNDS];

/* Ids of the letters and of the end; how many there are, or 0 and why. */
static int32_t spelled(const char *word, int32_t *ids, int *error) {
    int32_t n = 0;
    *error = *word ? G2P_OK : G2P_EMPTY;
    for (; *word; word++) {
        const char *found = strchr(letters, *word);
        if (!found) *error = G2P_NO_LETTER;
        if (n == G2P_LETTERS) *error = G2P_TOO_LONG;
        if (*error) return 0;
        ids[n++] = FIRST_LETTER + (int32_t)(found - letters);
    }
    ids[n++] = LETTER_END;
    return n;
}

int g2p(const char *word, char *out, size_t room) {
    int32_t ids[G2P_LETTERS + 1], before = PHONEME_START, sound;
    size_t used = 0;
    int error;
    if (!room) return G2P_NO_ROOM;
    out[0] = '\0';
    const int32_t n = spelled(word, ids, &error);
    if (error) return error;
    encoder_reset(&memory.encoder);
    if (encoder_run(&memory.encoder, n, ids, state, keys, votes)) return G2P_FAILED;
    for (int32_t k = 0; k < G2P_PHONEMES; k++, before = sound) {
        if (decoder_run(&memory.decoder, n, &before, state, keys, votes, &sound, state)) return G2P_FAILED;
        if (sound == PHONEME_END) break;
        const char *name = phonemes[sound];
        const size_t length = strlen(name), blank = used > 0;
        if (used + blank + length >= room) {
            out[0] = '\0';
            return G2P_NO_ROOM;
        }
        if (blank) out[used++] = ' ';
        memcpy(out + used, name, length + 1);
        used += length;
    }
    return G2P_OK;
}
