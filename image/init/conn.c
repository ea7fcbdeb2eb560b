#define _GNU_SOURCE
#include "conn.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { IN_CAPACITY = LENGTH_BYTES + 5 + MAX_PAYLOAD, OUT_CAPACITY = 512 * 1024 };

/* Apart from the buffers, which so stay out of the binary (.bss). */
static int conn_socket = -1;

static struct {
    uint8_t in[IN_CAPACITY];
    size_t in_start, in_end; /* unread bytes are in[in_start .. in_end) */
    uint8_t out[OUT_CAPACITY];
    size_t out_start, out_end;
} conn;

bool conn_open(void) { return conn_socket >= 0; }
int conn_fd(void) { return conn_socket; }

bool conn_dial(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int attempt;

    if (strlen(path) >= sizeof address.sun_path)
        return false;
    strcpy(address.sun_path, path);
    attempt = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (attempt < 0)
        return false;
    /* A full backlog is EAGAIN here: the caller's next attempt covers it. */
    if (connect(attempt, (struct sockaddr *)&address, sizeof address) < 0) {
        close(attempt);
        return false;
    }
    conn_socket = attempt;
    conn.in_start = conn.in_end = conn.out_start = conn.out_end = 0;
    return true;
}

void conn_close(void)
{
    if (conn_socket >= 0)
        close(conn_socket);
    conn_socket = -1;
    conn.in_start = conn.in_end = conn.out_start = conn.out_end = 0;
}

bool conn_can_fill(void) { return conn.in_end - conn.in_start < IN_CAPACITY; }

bool conn_fill(void)
{
    ssize_t n;

    memmove(conn.in, conn.in + conn.in_start, conn.in_end - conn.in_start);
    conn.in_end -= conn.in_start;
    conn.in_start = 0;
    if (conn.in_end == IN_CAPACITY)
        return true;
    n = recv(conn_socket, conn.in + conn.in_end, IN_CAPACITY - conn.in_end, MSG_DONTWAIT);
    if (n > 0)
        conn.in_end += (size_t)n;
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

enum next conn_next(struct frame *frame)
{
    size_t unread = conn.in_end - conn.in_start;
    struct cursor c = {.at = conn.in + conn.in_start, .end = conn.in + conn.in_end};
    uint32_t length;

    if (unread < LENGTH_BYTES)
        return NEXT_INCOMPLETE;
    length = take_u32(&c);
    /* Judged before the rest arrives: a wild length must not make us wait for it. */
    if (length < 5 || length > 5 + MAX_PAYLOAD)
        return NEXT_MALFORMED;
    if (unread < LENGTH_BYTES + length)
        return NEXT_INCOMPLETE;
    c.end = c.at + length;
    frame->type = *c.at++;
    frame->job = take_u32(&c);
    frame->payload = c;
    conn.in_start += LENGTH_BYTES + length;
    return NEXT_FRAME;
}

size_t conn_room(void) { return OUT_CAPACITY - (conn.out_end - conn.out_start); }
bool conn_pending(void) { return conn.out_end > conn.out_start; }

/* A place for `size` bytes at the end of the queue, or NULL when they do not fit. */
static uint8_t *reserve(size_t size)
{
    if (size > conn_room())
        return NULL;
    if (OUT_CAPACITY - conn.out_end < size) {
        memmove(conn.out, conn.out + conn.out_start, conn.out_end - conn.out_start);
        conn.out_end -= conn.out_start;
        conn.out_start = 0;
    }
    return conn.out + conn.out_end;
}

static void write_header(uint8_t *at, uint8_t type, uint32_t job, size_t size)
{
    put_u32(at, (uint32_t)(5 + size));
    at[4] = type;
    put_u32(at + 5, job);
}

void conn_send(uint8_t type, uint32_t job, const void *payload, size_t size)
{
    uint8_t *at = conn_socket >= 0 ? reserve(HEADER_BYTES + size) : NULL;

    if (!at)
        return;
    write_header(at, type, job, size);
    if (size)
        memcpy(at + HEADER_BYTES, payload, size);
    conn.out_end += HEADER_BYTES + size;
}

long conn_send_from(uint8_t type, uint32_t job, int fd, size_t most)
{
    uint8_t *at = reserve(HEADER_BYTES + most);
    ssize_t n;

    if (!at) {
        errno = EAGAIN;
        return -1;
    }
    n = read(fd, at + HEADER_BYTES, most);
    if (n > 0 && conn_socket >= 0) {
        write_header(at, type, job, (size_t)n);
        conn.out_end += HEADER_BYTES + (size_t)n;
    }
    return n;
}

bool conn_flush(void)
{
    while (conn_pending()) {
        ssize_t n = send(conn_socket, conn.out + conn.out_start, conn.out_end - conn.out_start,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        conn.out_start += (size_t)n;
    }
    conn.out_start = conn.out_end = 0;
    return true;
}
