/* The one connection to the host: dialled from here, non-blocking, with bounded buffers. */
#ifndef BEIGE_CONN_H
#define BEIGE_CONN_H

#include "wire.h"

struct frame {
    uint8_t type;
    uint32_t job;
    struct cursor payload;
};

enum next { NEXT_FRAME, NEXT_INCOMPLETE, NEXT_MALFORMED };

enum {
    /* Kept free for answers, so that output of jobs can never crowd them out: the two tails and the
     * EXIT of one job fit. */
    ANSWER_ROOM = 2 * (HEADER_BYTES + TAIL_BYTES) + 1024,
    /* The most output that travels in one frame: the capacity of a pipe. */
    OUTPUT_CHUNK = 65536,
};

bool conn_open(void);
int conn_fd(void);
/* One attempt; false when nobody listens. Never blocks. */
bool conn_dial(const char *path);
void conn_close(void);

/* Reads what has arrived, at most a buffer full. False: the peer is gone. */
bool conn_fill(void);
bool conn_can_fill(void);
/* Takes the next frame out of what was read. Its payload lives until conn_fill or conn_close. */
enum next conn_next(struct frame *frame);

/* Bytes that may be queued now. Unlimited while there is no connection: they go nowhere. */
size_t conn_room(void);
bool conn_pending(void);
/* Queues a frame; the caller has checked conn_room. Dropped while there is no connection. */
void conn_send(uint8_t type, uint32_t job, const void *payload, size_t size);
/* Reads up to `most` bytes from `fd` straight into a queued frame. Returns what read() returned. */
long conn_send_from(uint8_t type, uint32_t job, int fd, size_t most);
/* Writes what the socket takes. False: the peer is gone. */
bool conn_flush(void);

#endif
