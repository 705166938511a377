/* English spelling to phonemes: g2p("gatewise", out, sizeof out) writes "G EY1 T W AY2 Z". No malloc. */
#ifndef G2P_H
#define G2P_H

#include <stddef.h>

enum { G2P_OK, G2P_EMPTY, G2P_NO_LETTER, G2P_TOO_LONG, G2P_NO_ROOM, G2P_FAILED };

/* `word` has letters a-z and at most G2P_LETTERS of them (phonemes.h); `out` gets the phonemes with blanks between
 * them and a zero at the end, G2P_ROOM bytes at most. Where something is wrong, `out` is empty, and the answer says
 * what; G2P_FAILED says that phonemes.h belongs to other networks. One call at a time: their memory is static. */
int g2p(const char *word, char *out, size_t room);

#endif
