/* g2p WORD...: says words. Without a word: compares with the golden ones. */

#include <stdio.h>
#include <string.h>

#include "g2p.h"
#include "golden_words.h"
#include "phonemes.h"

static const char *const reasons[] = {"", "is empty", "has something else than letters a-z", "is too long", "has too much to say",
                                      "does not fit the networks"};

static int check(void) {
    char out[G2P_ROOM];
    int wrong = 0;
    for (size_t k = 0; k < sizeof golden / sizeof *golden; k++) {
        const int error = g2p(golden[k].word, out, sizeof out);
        if (!error && !strcmp(out, golden[k].said)) continue;
        printf("%s: %s, expected %s\n", golden[k].word, out, golden[k].said);
        wrong++;
    }
    printf("%zu golden words, %d wrong\n", sizeof golden / sizeof *golden, wrong);
    return wrong != 0;
}

int main(int n, char **words) {
    char out[G2P_ROOM];
    int failed = 0;
    if (n == 1) return check();
    for (int k = 1; k < n; k++) {
        const int error = g2p(words[k], out, sizeof out);
        if (error) fprintf(stderr, "%s: %s\n", words[k], reasons[error]);
        else printf("%s  %s\n", words[k], out);
        failed |= error;
    }
    return failed != 0;
}
