/* /beige/init: the executor, first process of every sandbox.
 *
 * Trust: the host is trusted to be who listens at the socket (its directory is mounted read-only), its
 * frames are checked all the same. Everything else in this container may be hostile and has our uid:
 * hence not dumpable (no ptrace, no /proc/1/environ, no /proc/1/fd), and nothing here ever blocks.
 *
 *   init [SOCKET]     default /run/beige/exec.sock
 */
#define _GNU_SOURCE
#include "conn.h"
#include "job.h"
#include "proc.h"
#include "spawn.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    REDIAL_MIN_MS = 5,
    REDIAL_MAX_MS = 250,
    KILL_INTERVAL_MS = 1,
    POLL_SIGNALS = 0,
    POLL_CONN = 1,
    POLL_JOBS = 2,
};

static struct {
    const char *socket_path;
    int signals;
    int64_t dial_at_ms;
    int redial_ms;
    bool clearing;      /* everything is being killed; no frame is read until nothing is left */
    bool answer_reset;  /* ... because the host asked for it */
    uint32_t reset_job;
    bool has_children;
} self = {.redial_ms = REDIAL_MIN_MS};

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* --- the connection --- */

static void dial(int64_t now)
{
    uint8_t hello[8];

    if (conn_dial(self.socket_path)) {
        put_u32(hello, PROTOCOL_VERSION);
        put_u32(hello + 4, (uint32_t)getpid());
        conn_send(HELLO, 0, hello, sizeof hello);
    }
    /* Also counted after a success: a host that hangs up at once must not make us spin. */
    self.dial_at_ms = now + self.redial_ms;
    self.redial_ms = self.redial_ms * 2 < REDIAL_MAX_MS ? self.redial_ms * 2 : REDIAL_MAX_MS;
}

static void clear_box(void)
{
    self.clearing = true;
    jobs_abandon();
}

/* The host has forgotten the jobs of a lost connection, so nothing of them may run on. */
static void lose_connection(void)
{
    conn_close();
    self.answer_reset = false;
    clear_box();
}

static bool handle(struct frame *frame)
{
    switch (frame->type) {
    case PING:
        conn_send(PONG, frame->job, NULL, 0);
        return frame->payload.at == frame->payload.end;
    case RESET:
        self.answer_reset = true;
        self.reset_job = frame->job;
        clear_box();
        return frame->payload.at == frame->payload.end;
    default:
        return job_handle(frame, now_ms());
    }
}

/* Every answer must fit: while the host does not take its answers, its frames wait. */
static bool takes_frames(void) { return !self.clearing && conn_room() >= ANSWER_ROOM; }

static void handle_frames(void)
{
    struct frame frame;
    enum next next = NEXT_INCOMPLETE;

    while (takes_frames() && (next = conn_next(&frame)) == NEXT_FRAME) {
        self.redial_ms = REDIAL_MIN_MS;
        if (!handle(&frame)) {
            lose_connection();
            return;
        }
    }
    if (next == NEXT_MALFORMED)
        lose_connection();
}

static void serve_connection(short revents)
{
    bool alive = true;

    if (!conn_open() || !revents)
        return;
    if (takes_frames() && conn_can_fill())
        alive = conn_fill();
    else if (revents & (POLLHUP | POLLERR))
        alive = false;
    if (!alive)
        lose_connection();
}

static void flush(void)
{
    if (conn_open() && !conn_flush())
        lose_connection();
}

/* --- children and signals --- */

static void reap(void)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        jobs_reaped(pid, status);
    self.has_children = pid == 0;
}

/* As PID 1 no signal is obeyed, for nobody can tell who sent it: an agent can write the sender itself
 * (rt_sigqueueinfo, pidfd_send_signal), leave it out (F_SETSIG), or fill the queue that would keep it
 * (tests/attacks/test_executor.py). The host ends a container with SIGKILL, the image's STOPSIGNAL. */
static void serve_signals(void)
{
    struct signalfd_siginfo info;

    while (read(self.signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD || getpid() == 1)
            continue;
        do {
            kill_everything();
            reap();
        } while (self.has_children);
        exit(0);
    }
}

static void clear_pass(void)
{
    kill_everything();
    reap();
    if (self.has_children || !jobs_none())
        return;
    self.clearing = false;
    if (self.answer_reset)
        conn_send(PONG, self.reset_job, NULL, 0);
    self.answer_reset = false;
}

/* --- the loop --- */

static int wait_ms(int64_t now)
{
    int64_t next = jobs_deadline_ms();

    if (self.clearing || jobs_dying())
        return KILL_INTERVAL_MS;
    if (!conn_open() && (next < 0 || self.dial_at_ms < next))
        next = self.dial_at_ms;
    if (next < 0)
        return -1;
    return next <= now ? 0 : next - now > 60000 ? 60000 : (int)(next - now);
}

static short conn_events(void)
{
    short wanted = conn_pending() ? POLLOUT : 0;

    if (takes_frames() && conn_can_fill())
        wanted |= POLLIN;
    return wanted;
}

/* Everything that can be decided without waiting. Frames first: those left in the buffer by an earlier
 * turn would not wake poll(). */
static void act(void)
{
    int64_t now = now_ms();

    if (!conn_open() && !self.clearing && now >= self.dial_at_ms)
        dial(now);
    flush();
    handle_frames();
    if (self.clearing)
        clear_pass();
    jobs_advance(now_ms());
    flush();
}

static void turn(void)
{
    static struct pollfd fds[POLL_JOBS + MAX_JOBS * POLLS_PER_JOB];
    size_t count;

    act();
    fds[POLL_SIGNALS] = (struct pollfd){.fd = self.signals, .events = POLLIN};
    fds[POLL_CONN] = (struct pollfd){.fd = conn_fd(), .events = conn_events()};
    count = jobs_poll(fds, POLL_JOBS);
    if (poll(fds, count, wait_ms(now_ms())) < 0)
        return;
    serve_signals();
    reap();
    jobs_serve(fds);
    serve_connection(fds[POLL_CONN].revents);
}

static int open_signals(void)
{
    sigset_t set;

    default_signals();
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int main(int argc, char **argv)
{
    self.socket_path = argc > 1 ? argv[1] : "/run/beige/exec.sock";
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* what PID 1 is anyway, and what the unit tests need */
    self.signals = open_signals();
    if (self.signals < 0)
        return 1;
    for (;;)
        turn();
}
