#include "stream.h"

#include "conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void stream_open(struct stream *s, int fd, uint8_t type, uint8_t tail_type, uint64_t limit)
{
    *s = (struct stream){.fd = fd, .type = type, .tail_type = tail_type, .allowed = limit};
}

void stream_close(struct stream *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

void stream_free(struct stream *s)
{
    stream_close(s);
    free(s->tail);
    s->tail = NULL;
}

bool stream_readable(const struct stream *s, uint64_t credit, bool discard)
{
    if (s->fd < 0)
        return false;
    if (s->allowed == 0)
        return true;
    if (credit == 0)
        return discard;
    return conn_room() >= ANSWER_ROOM + HEADER_BYTES + OUTPUT_CHUNK;
}

static void keep_tail(struct stream *s, const uint8_t *bytes, size_t n)
{
    /* Once something was dropped nothing may be forwarded: there would be a hole in the output. */
    s->allowed = 0;
    s->dropped += n;
    if (!s->tail)
        s->tail = malloc(TAIL_BYTES);
    if (!s->tail)
        return;
    for (size_t skip = n > TAIL_BYTES ? n - TAIL_BYTES : 0; skip < n;) {
        size_t at = (s->dropped - n + skip) % TAIL_BYTES;
        size_t chunk = n - skip < TAIL_BYTES - at ? n - skip : TAIL_BYTES - at;
        memcpy(s->tail + at, bytes + skip, chunk);
        skip += chunk;
    }
}

static uint64_t smallest(uint64_t a, uint64_t b) { return a < b ? a : b; }

void stream_read(struct stream *s, uint32_t job, uint64_t *credit, bool discard)
{
    static uint8_t scratch[OUTPUT_CHUNK];
    bool forward = s->allowed > 0 && *credit > 0;
    size_t most = s->draining ? smallest(s->left, OUTPUT_CHUNK) : OUTPUT_CHUNK;
    ssize_t n;

    if (!forward && s->allowed > 0 && !discard)
        return;
    if (forward) {
        most = smallest(most, smallest(s->allowed, *credit));
        n = conn_send_from(s->type, job, s->fd, most);
    } else {
        n = read(s->fd, scratch, most);
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        stream_close(s);
        return;
    }
    s->total += (uint64_t)n;
    if (forward) {
        s->allowed -= (uint64_t)n;
        *credit -= (uint64_t)n;
    } else {
        keep_tail(s, scratch, (size_t)n);
    }
    if (s->draining && (s->left -= (uint64_t)n) == 0)
        stream_close(s);
}

void stream_drain(struct stream *s)
{
    int in_pipe = 0;

    if (s->fd < 0 || s->draining)
        return;
    s->draining = true;
    if (ioctl(s->fd, FIONREAD, &in_pipe) < 0 || in_pipe <= 0)
        stream_close(s);
    s->left = (uint64_t)in_pipe;
}

void stream_send_tail(const struct stream *s, uint32_t job)
{
    uint8_t ordered[TAIL_BYTES];
    size_t newest = s->dropped % TAIL_BYTES;

    if (!s->tail || s->dropped == 0)
        return;
    if (s->dropped <= TAIL_BYTES) {
        conn_send(s->tail_type, job, s->tail, (size_t)s->dropped);
        return;
    }
    memcpy(ordered, s->tail + newest, TAIL_BYTES - newest);
    memcpy(ordered + TAIL_BYTES - newest, s->tail, newest);
    conn_send(s->tail_type, job, ordered, TAIL_BYTES);
}
