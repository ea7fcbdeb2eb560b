#define _GNU_SOURCE
#include "job.h"

#include "proc.h"
#include "spawn.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Bytes from the host that the command has not read yet. */
struct input {
    int fd; /* -1: no stdin, or closed */
    uint8_t *ring;
    size_t start, count;
    bool eof;
    uint32_t owed; /* credit not yet returned to the host */
};

struct job {
    bool used;
    uint32_t id;
    pid_t supervisor; /* 0: reaped */
    pid_t command;    /* 0: not reported yet */
    int report;
    struct input in;
    struct stream out, err;
    uint64_t credit;
    int64_t started_ms, deadline_ms; /* deadline 0: none */
    bool ended;                      /* `status` holds the command's wait status */
    int status;
    int error; /* errno of a command that could not be started */
    int32_t error_kind;
    bool dying;    /* kill passes are going on */
    bool timed_out, killed;
    bool discard;  /* output without credit is dropped instead of waiting */
    bool released; /* we have killed the supervisor ourselves */
    bool told;     /* the host knows the end; the slot is kept until the supervisor is reaped */
    int polled[POLLS_PER_JOB];
};

enum { POLL_REPORT, POLL_STDIN, POLL_STDOUT, POLL_STDERR };

static struct job jobs[MAX_JOBS];
static size_t first_served; /* rotates, so that a chatty job cannot keep the others from the buffer */
static bool purge_orphans;

#define FOR_EACH_JOB(j)                                                                                \
    for (struct job *j = jobs; j < jobs + MAX_JOBS; j++)                                               \
        if (j->used)

/* For the host a job whose end it was told exists no more. */
static struct job *find_job(uint32_t id)
{
    FOR_EACH_JOB(j)
        if (j->id == id && !j->told)
            return j;
    return NULL;
}

static struct job *free_slot(void)
{
    for (struct job *j = jobs; j < jobs + MAX_JOBS; j++)
        if (!j->used)
            return j;
    return NULL;
}

static void send_error(uint32_t id, int error, const char *step)
{
    uint8_t payload[160];
    int n;

    put_u32(payload, (uint32_t)error);
    n = snprintf((char *)payload + 4, sizeof payload - 4, "%s: %s", step, strerror(error));
    conn_send(ERROR, id, payload, 4 + (size_t)n);
}

/* --- RUN --- */

/* u16 count, then that many texts. The array is the caller's to free; the texts stay in the frame. */
static char **take_texts(struct cursor *c)
{
    uint16_t count = take_u16(c);
    char **texts = calloc((size_t)count + 1, sizeof *texts);

    for (uint16_t i = 0; texts && i < count; i++)
        texts[i] = (char *)(uintptr_t)take_text(c);
    return texts;
}

static void start(struct job *j, uint32_t id, const struct command *command, uint64_t limit)
{
    struct started started;

    if (!spawn(command, &started)) {
        send_error(id, errno, "fork");
        return;
    }
    j->used = true;
    j->id = id;
    j->supervisor = started.supervisor;
    j->report = started.report;
    j->in.fd = started.stdin_fd;
    stream_open(&j->out, started.stdout_fd, STDOUT, STDOUT_TAIL, limit);
    stream_open(&j->err, started.stderr_fd, STDERR, STDERR_TAIL, limit);
}

static void try_start(struct frame *frame, const struct command *command, uint32_t flags,
                      uint64_t limit, const struct job *settings)
{
    struct job *j = free_slot();

    if (!command->argv || !command->envp)
        send_error(frame->job, ENOMEM, "run");
    else if (!command->argv[0] || (flags & ~(uint32_t)RUN_HAS_STDIN))
        send_error(frame->job, EINVAL, "run");
    else if (!j)
        send_error(frame->job, EAGAIN, "too many jobs");
    else {
        *j = *settings;
        start(j, frame->job, command, limit);
    }
}

static bool handle_run(struct frame *frame, int64_t now_ms)
{
    struct cursor *c = &frame->payload;
    uint32_t timeout_ms = take_u32(c);
    uint32_t flags = take_u32(c);
    uint64_t limit = take_u64(c);
    struct job settings = {.credit = take_u32(c), .started_ms = now_ms, .report = -1, .in.fd = -1};
    struct command command = {.cwd = take_text(c), .has_stdin = flags & RUN_HAS_STDIN};
    bool well_formed;

    command.argv = take_texts(c);
    command.envp = take_texts(c);
    well_formed = !c->bad && c->at == c->end && !find_job(frame->job);
    if (timeout_ms)
        settings.deadline_ms = now_ms + timeout_ms;
    if (well_formed)
        try_start(frame, &command, flags, limit, &settings);
    free(command.argv);
    free(command.envp);
    return well_formed;
}

/* --- stdin --- */

static void close_input(struct input *in)
{
    if (in->fd >= 0)
        close(in->fd);
    in->fd = -1;
    in->owed += (uint32_t)in->count;
    in->count = 0;
    free(in->ring);
    in->ring = NULL;
}

/* In big portions, or when the queue is empty and the host might be waiting. */
static void return_stdin_credit(struct job *j)
{
    uint8_t payload[4];

    if (!j->in.owed || (j->in.count && j->in.owed < STDIN_WINDOW / 4))
        return;
    put_u32(payload, j->in.owed);
    j->in.owed = 0;
    conn_send(STDIN_CREDIT, j->id, payload, sizeof payload);
}

static void write_input(struct job *j)
{
    struct input *in = &j->in;

    while (in->fd >= 0 && in->count) {
        size_t chunk = in->count < STDIN_WINDOW - in->start ? in->count : STDIN_WINDOW - in->start;
        ssize_t n = write(in->fd, in->ring + in->start, chunk);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n < 0) { /* the command closed its stdin: what is left has no reader */
            close_input(in);
            break;
        }
        in->start = (in->start + (size_t)n) % STDIN_WINDOW;
        in->count -= (size_t)n;
        in->owed += (uint32_t)n;
    }
    if (in->eof && !in->count)
        close_input(in);
    return_stdin_credit(j);
}

static bool queue_input(struct input *in, const uint8_t *bytes, size_t n)
{
    if (!in->ring && !(in->ring = malloc(STDIN_WINDOW)))
        return false;
    for (size_t done = 0; done < n;) {
        size_t at = (in->start + in->count) % STDIN_WINDOW;
        size_t chunk = n - done < STDIN_WINDOW - at ? n - done : STDIN_WINDOW - at;
        memcpy(in->ring + at, bytes + done, chunk);
        in->count += chunk;
        done += chunk;
    }
    return true;
}

static bool handle_stdin(struct job *j, struct frame *frame)
{
    size_t n = (size_t)(frame->payload.end - frame->payload.at);

    /* Bytes the host still may send are counted by it, not here: but it can never have more under way
     * than the window, so that an overfull queue is its mistake. */
    if (n > STDIN_WINDOW - j->in.count - j->in.owed)
        return false;
    if (j->in.fd < 0) {
        j->in.owed += (uint32_t)n;
        return_stdin_credit(j);
        return true;
    }
    if (n == 0)
        j->in.eof = true;
    else if (!queue_input(&j->in, frame->payload.at, n))
        close_input(&j->in);
    write_input(j);
    return true;
}

/* --- the other frames --- */

static void begin_kill(struct job *j)
{
    j->discard = true;
    if (j->ended || !j->supervisor)
        return; /* only its last output is missing, and that need not wait for credit any more */
    j->dying = j->killed = true;
}

static bool handle_for(struct job *j, struct frame *frame)
{
    struct cursor *c = &frame->payload;
    uint32_t value;

    if (frame->type == STDIN)
        return handle_stdin(j, frame);
    if (frame->type == KILL) {
        begin_kill(j);
        return c->at == c->end;
    }
    value = take_u32(c);
    if (c->bad || c->at != c->end)
        return false;
    if (frame->type == CREDIT)
        j->credit += value;
    else if (value > 0 && value < NSIG && !j->ended)
        kill_group(j->command, (int)value);
    return true;
}

bool job_handle(struct frame *frame, int64_t now_ms)
{
    struct job *j;

    if (frame->type == RUN)
        return handle_run(frame, now_ms);
    if (frame->type != STDIN && frame->type != KILL && frame->type != CREDIT && frame->type != SIGNAL)
        return false;
    j = find_job(frame->job);
    return !j || handle_for(j, frame);
}

/* --- pipes --- */

static int add_poll(struct pollfd *fds, size_t *count, bool wanted, int fd, short events)
{
    if (!wanted || fd < 0)
        return -1;
    fds[*count] = (struct pollfd){.fd = fd, .events = events};
    return (int)(*count)++;
}

size_t jobs_poll(struct pollfd *fds, size_t count)
{
    FOR_EACH_JOB(j) {
        j->polled[POLL_REPORT] = add_poll(fds, &count, true, j->report, POLLIN);
        j->polled[POLL_STDIN] = add_poll(fds, &count, j->in.count > 0, j->in.fd, POLLOUT);
        j->polled[POLL_STDOUT] =
            add_poll(fds, &count, stream_readable(&j->out, j->credit, j->discard), j->out.fd, POLLIN);
        j->polled[POLL_STDERR] =
            add_poll(fds, &count, stream_readable(&j->err, j->credit, j->discard), j->err.fd, POLLIN);
    }
    return count;
}

static void close_report(struct job *j)
{
    if (j->report >= 0)
        close(j->report);
    j->report = -1;
}

static void note_report(struct job *j, const struct report *report)
{
    switch (report->kind) {
    case REPORT_STARTED:
        j->command = report->value;
        break;
    case REPORT_ENDED:
        j->ended = true;
        j->status = report->value;
        break;
    default:
        j->error_kind = report->kind;
        j->error = report->value;
    }
}

static void read_reports(struct job *j)
{
    struct report report;
    ssize_t n;

    while (j->report >= 0) {
        n = read(j->report, &report, sizeof report);
        if (n == sizeof report)
            note_report(j, &report);
        else if (n < 0 && errno == EINTR)
            continue;
        else if (n < 0 && errno == EAGAIN)
            break;
        else
            close_report(j);
    }
}

static bool is_ready(const struct job *j, int which, const struct pollfd *fds)
{
    return j->polled[which] >= 0 && fds[j->polled[which]].revents;
}

static void serve_stream(struct job *j, struct stream *s)
{
    /* Asked again: the streams served before may have used up the credit or the buffer. */
    if (stream_readable(s, j->credit, j->discard))
        stream_read(s, j->id, &j->credit, j->discard);
}

void jobs_serve(const struct pollfd *fds)
{
    first_served = (first_served + 1) % MAX_JOBS;
    for (size_t i = 0; i < MAX_JOBS; i++) {
        struct job *j = &jobs[(first_served + i) % MAX_JOBS];
        if (!j->used)
            continue;
        if (is_ready(j, POLL_REPORT, fds))
            read_reports(j);
        if (is_ready(j, POLL_STDIN, fds) && conn_room() >= ANSWER_ROOM)
            write_input(j);
        if (is_ready(j, POLL_STDOUT, fds))
            serve_stream(j, &j->out);
        if (is_ready(j, POLL_STDERR, fds))
            serve_stream(j, &j->err);
    }
}

/* --- ends --- */

static void release_supervisor(struct job *j)
{
    j->released = true;
    kill_one(j->supervisor, SIGKILL);
}

void jobs_reaped(pid_t pid, int status)
{
    FOR_EACH_JOB(j) {
        if (j->supervisor != pid)
            continue;
        read_reports(j);
        j->supervisor = 0;
        j->dying = false;
        /* Somebody in the box killed it, and its tree has become ours, mixed with the survivors of
         * earlier commands. All those orphans go: whoever kills supervisors keeps no dev server. */
        if (WIFSIGNALED(status) && !j->released)
            purge_orphans = true;
    }
}

static void purge_pass(void)
{
    pid_t supervisors[MAX_JOBS];
    size_t count = 0;

    FOR_EACH_JOB(j)
        if (j->supervisor)
            supervisors[count++] = j->supervisor;
    purge_orphans = !kill_descendants(getpid(), supervisors, count);
}

static void kill_pass(struct job *j, int64_t now_ms)
{
    bool known = j->command || j->error_kind;

    if (!kill_descendants(j->supervisor, NULL, 0))
        return;
    /* Nothing below it, but was there ever? Killed before it has forked and reported, it could leave a
     * command behind that nobody knows. */
    if (!known && now_ms < j->started_ms + START_DEADLINE_MS)
        return;
    purge_orphans = purge_orphans || !known;
    j->dying = false;
    release_supervisor(j);
}

static int32_t exit_status(const struct job *j)
{
    if (!j->ended)
        return -SIGKILL;
    return WIFEXITED(j->status) ? WEXITSTATUS(j->status) : -WTERMSIG(j->status);
}

static void send_exit(const struct job *j)
{
    uint8_t payload[4 + 1 + 8 + 8];

    stream_send_tail(&j->out, j->id);
    stream_send_tail(&j->err, j->id);
    put_u32(payload, (uint32_t)exit_status(j));
    payload[4] = (uint8_t)((j->timed_out ? EXIT_TIMED_OUT : 0) | (j->killed ? EXIT_KILLED : 0));
    put_u64(payload + 5, j->out.total);
    put_u64(payload + 13, j->err.total);
    conn_send(EXIT, j->id, payload, sizeof payload);
}

static const char *step_name(int32_t kind)
{
    switch (kind) {
    case REPORT_NO_CWD:
        return "chdir";
    case REPORT_NO_EXEC:
        return "exec";
    default:
        return "fork";
    }
}

static void tell_end(struct job *j)
{
    if (j->error_kind)
        send_error(j->id, j->error, step_name(j->error_kind));
    else
        send_exit(j);
    close_report(j);
    close_input(&j->in);
    stream_free(&j->out);
    stream_free(&j->err);
    j->told = true;
}

static bool few_end(void)
{
    size_t ending = 0;

    FOR_EACH_JOB(j)
        ending += j->told;
    return ending < MAX_JOBS / 4;
}

/* Nothing of the command is left, or what is left may stay (background processes). The supervisor's own end
 * is not waited for, unless so many are ending that they might take the places of new commands. */
static bool may_tell(const struct job *j)
{
    bool over = !j->supervisor || (j->released && !j->killed && !j->timed_out && few_end());

    return over && j->out.fd < 0 && j->err.fd < 0 && conn_room() >= ANSWER_ROOM;
}

static void advance(struct job *j, int64_t now_ms)
{
    if (j->deadline_ms && now_ms >= j->deadline_ms && j->supervisor && !j->ended && !j->timed_out)
        j->timed_out = j->dying = true;
    if (j->dying)
        kill_pass(j, now_ms);
    else if (j->supervisor && !j->released && (j->ended || j->error_kind))
        release_supervisor(j);
    if (j->ended || !j->supervisor) {
        stream_drain(&j->out);
        stream_drain(&j->err);
    }
    if (!j->told && may_tell(j))
        tell_end(j);
    if (j->told && !j->supervisor)
        j->used = false;
}

void jobs_advance(int64_t now_ms)
{
    if (purge_orphans)
        purge_pass();
    FOR_EACH_JOB(j)
        advance(j, now_ms);
}

int64_t jobs_deadline_ms(void)
{
    int64_t next = -1;

    FOR_EACH_JOB(j)
        if (j->deadline_ms && j->supervisor && !j->ended && !j->timed_out &&
            (next < 0 || j->deadline_ms < next))
            next = j->deadline_ms;
    return next;
}

bool jobs_dying(void)
{
    FOR_EACH_JOB(j)
        if (j->dying)
            return true;
    return purge_orphans;
}

bool jobs_none(void)
{
    FOR_EACH_JOB(j)
        return false;
    return true;
}

void jobs_abandon(void)
{
    FOR_EACH_JOB(j) {
        j->discard = j->released = true;
        j->killed = j->killed || !j->ended;
    }
}
