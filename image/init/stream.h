/* One output pipe of a job: forward, or keep only the tail, and count. */
#ifndef BEIGE_STREAM_H
#define BEIGE_STREAM_H

#include <stdbool.h>
#include <stdint.h>

struct stream {
    int fd; /* -1: nothing more will be read */
    uint8_t type, tail_type;
    uint64_t total;   /* bytes read */
    uint64_t allowed; /* bytes that may still be forwarded */
    bool draining;    /* the command has ended: read only `left` more bytes */
    uint64_t left;
    uint8_t *tail; /* ring; bytes before `dropped % TAIL_BYTES` are the newest */
    uint64_t dropped;
};

void stream_open(struct stream *s, int fd, uint8_t type, uint8_t tail_type, uint64_t limit);
void stream_close(struct stream *s);
void stream_free(struct stream *s);

/* Whether a read would make progress now. `discard`: nobody will grant credit any more. */
bool stream_readable(const struct stream *s, uint64_t credit, bool discard);
/* Reads once; takes what it forwards from `credit`. */
void stream_read(struct stream *s, uint32_t job, uint64_t *credit, bool discard);
/* From now on read only what is in the pipe already: survivors may hold the other end for ever. */
void stream_drain(struct stream *s);
void stream_send_tail(const struct stream *s, uint32_t job);

#endif
