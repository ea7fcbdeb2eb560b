/* /beige/relay: carries connections to 127.0.0.1:PORT to the agent's egress socket, byte for byte.
 *
 * Programs speak to a proxy over TCP; the container has no interface but lo, and the proxy listens on a
 * Unix socket. This program decides nothing and is trusted with nothing: it runs as the agent, which may
 * kill it, replace it or dial the socket itself, and gains nothing by it. The gateway's bridge ends that
 * socket and treats all of it as hostile.
 *
 *   relay [PORT [SOCKET]]     default 3128 /run/beige/egress.sock
 *
 * Prints "ready" once it listens. Ends with 1 if it can't listen.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 256, BUFFER = 16384, CLIENT = 0, GATEWAY = 1 };

static const char no_gateway[] = "HTTP/1.1 503 The gateway does not answer\r\nContent-Length: 0\r\n"
                                 "Connection: close\r\n\r\n";

/* One direction of a connection: what was read from one end and not yet written to the other. */
struct flow {
    uint8_t buffer[BUFFER];
    size_t start, count;
    bool ended;    /* nothing more will be read */
    bool finished; /* ... and the end was passed on */
};

struct connection {
    bool used;
    int fds[2];
    struct flow flows[2]; /* flows[CLIENT]: read from the client */
};

static struct connection connections[MAX_CONNECTIONS];

static bool would_block(void) { return errno == EAGAIN || errno == EINTR; }

static void fill(struct flow *f, int from)
{
    ssize_t n = read(from, f->buffer, BUFFER);

    if (n > 0) {
        f->start = 0;
        f->count = (size_t)n;
    } else if (n == 0 || !would_block()) {
        f->ended = true;
    }
}

/* A broken receiver ends the flow; what it will not take is dropped. */
static void drain(struct flow *f, int to)
{
    ssize_t n;

    if (f->count) {
        n = send(to, f->buffer + f->start, f->count, MSG_NOSIGNAL);
        if (n >= 0) {
            f->start += (size_t)n;
            f->count -= (size_t)n;
        } else if (!would_block()) {
            f->count = 0;
            f->ended = true;
        }
    }
    if (!f->count && f->ended && !f->finished) {
        shutdown(to, SHUT_WR);
        f->finished = true;
    }
}

static void close_connection(struct connection *c)
{
    close(c->fds[CLIENT]);
    close(c->fds[GATEWAY]);
    c->used = false;
}

static bool wants_to_read(const struct flow *f) { return !f->ended && !f->count; }

static short events(const struct connection *c, int end)
{
    const struct flow *in = &c->flows[end], *out = &c->flows[!end];

    return (short)((wants_to_read(in) ? POLLIN : 0) | (out->count ? POLLOUT : 0));
}

static void serve(struct connection *c, short client, short gateway)
{
    short seen[2] = {client, gateway};

    for (int end = 0; end < 2; end++)
        if (seen[end] && wants_to_read(&c->flows[end]))
            fill(&c->flows[end], c->fds[end]);
    for (int end = 0; end < 2; end++)
        drain(&c->flows[end], c->fds[!end]);
    if (c->flows[CLIENT].finished && c->flows[GATEWAY].finished)
        close_connection(c);
}

/* --- new connections --- */

static int dial(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static struct connection *free_slot(void)
{
    for (struct connection *c = connections; c < connections + MAX_CONNECTIONS; c++)
        if (!c->used)
            return c;
    return NULL;
}

static void accept_one(int listener, const char *path)
{
    struct connection *c = free_slot();
    int client = c ? accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;
    int gateway, on = 1;

    if (client < 0)
        return;
    gateway = dial(path);
    if (gateway < 0) {
        send(client, no_gateway, sizeof no_gateway - 1, MSG_NOSIGNAL);
        close(client);
        return;
    }
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->used = true;
    c->fds[CLIENT] = client;
    c->fds[GATEWAY] = gateway;
    for (int end = 0; end < 2; end++) {
        struct flow *f = &c->flows[end];
        f->start = f->count = 0;
        f->ended = f->finished = false;
    }
}

static int listen_on(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 128) < 0)
        return -1;
    return fd;
}

/* --- the loop --- */

/* An end nobody waits for is left out: poll() would report its hang-up again and again. */
static void watch(struct pollfd *at, int fd, short wanted)
{
    *at = (struct pollfd){.fd = wanted ? fd : -1, .events = wanted};
}

static void turn(int listener, const char *path)
{
    static struct pollfd fds[1 + 2 * MAX_CONNECTIONS];
    static struct connection *shown[MAX_CONNECTIONS];
    size_t count = 0;

    for (struct connection *c = connections; c < connections + MAX_CONNECTIONS; c++) {
        if (!c->used)
            continue;
        for (int end = 0; end < 2; end++)
            watch(&fds[1 + 2 * count + (size_t)end], c->fds[end], events(c, end));
        shown[count++] = c;
    }
    watch(&fds[0], listener, count < MAX_CONNECTIONS ? POLLIN : 0);
    if (poll(fds, 1 + 2 * count, -1) < 0)
        return;
    for (size_t i = 0; i < count; i++)
        serve(shown[i], fds[1 + 2 * i].revents, fds[2 + 2 * i].revents);
    if (fds[0].revents)
        accept_one(listener, path);
}

int main(int argc, char **argv)
{
    const char *path = argc > 2 ? argv[2] : "/run/beige/egress.sock";
    int listener = listen_on((uint16_t)(argc > 1 ? atoi(argv[1]) : 3128));

    if (listener < 0 || write(STDOUT_FILENO, "ready\n", 6) != 6)
        return 1;
    signal(SIGPIPE, SIG_IGN);
    for (;;)
        turn(listener, path);
}
