/* Fork and join, the only place that knows about threads. Not part of an embedded export. */
#ifndef GW_THREADS_H
#define GW_THREADS_H

enum { GW_MAX_PARTS = 64 };

/* body(context, part) for part = 0 .. parts-1, each on a thread of its own, the last one on the caller's.
 * One part starts no thread; where threads cannot be had, the parts run one after the other. */
void gw_parallel(int parts, void (*body)(void *context, int part), void *context);

#endif
