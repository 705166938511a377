#include "threads.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>

typedef struct {
    void (*body)(void *context, int part);
    void *context;
    int part;
} job;

static void *start(void *argument) {
    job *j = argument;
    j->body(j->context, j->part);
    return NULL;
}

void gw_parallel(int parts, void (*body)(void *context, int part), void *context) {
    pthread_t thread[GW_MAX_PARTS];
    job jobs[GW_MAX_PARTS];
    int started = 0;
    while (started < parts - 1 && started < GW_MAX_PARTS) {
        jobs[started] = (job){body, context, started};
        if (pthread_create(&thread[started], NULL, start, &jobs[started])) break;
        started++;
    }
    for (int part = started; part < parts; part++) body(context, part);
    while (started > 0) pthread_join(thread[--started], NULL);
}
#else
void gw_parallel(int parts, void (*body)(void *context, int part), void *context) {
    for (int part = 0; part < parts; part++) body(context, part);
}
#endif
