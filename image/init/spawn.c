#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPORT_FD = 3 };

extern char **environ;

enum { IN, OUT, ERR, REPORT, PIPES };
enum { READ_END, WRITE_END };

static void tell(int32_t kind, int32_t value)
{
    struct report report = {.kind = kind, .value = value};
    ssize_t ignored = write(REPORT_FD, &report, sizeof report);

    (void)ignored; /* the executor is gone or has forgotten us: nobody to tell */
}

static _Noreturn void give_up(int32_t kind)
{
    tell(kind, errno);
    _exit(127);
}

/* By system call: the C library refuses to touch the two signals it keeps for itself (32, 33), which
 * whoever started us may have left ignored. */
void default_signals(void)
{
    enum { KERNEL_SIGSET_BYTES = 8, KERNEL_SIGNALS = 64 };
    const unsigned long action[8] = {0}; /* struct kernel_sigaction: SIG_DFL, no flags, empty mask */

    for (int signo = 1; signo <= KERNEL_SIGNALS; signo++) /* refused for KILL and STOP, as it should be */
        syscall(SYS_rt_sigaction, signo, action, NULL, KERNEL_SIGSET_BYTES);
}

/* What the executor set for itself: it ignores SIGPIPE, the supervisor blocks all. */
static void own_signals(void)
{
    sigset_t none;

    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* When memory runs out the kernel takes the agent's processes and leaves the executor, so that the
 * container survives (tests/docker: memory hog). /proc/self is ours to write only while dumpable. */
static void prefer_for_oom_kill(void)
{
    int fd;

    prctl(PR_SET_DUMPABLE, 1);
    fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t ignored = write(fd, "1000", 4);
        (void)ignored;
        close(fd);
    }
}

static _Noreturn void run_command(const struct command *command)
{
    setsid();
    own_signals();
    prefer_for_oom_kill();
    if (chdir(command->cwd) < 0)
        give_up(REPORT_NO_CWD);
    environ = command->envp; /* execvp looks PATH up here */
    execvp(command->argv[0], command->argv);
    give_up(REPORT_NO_EXEC);
}

static void block_all_signals(void)
{
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
}

/* The agent's processes share our uid and may send any signal here. All but KILL and STOP are blocked;
 * the executor copes with those two. */
static _Noreturn void supervise(const struct command *command)
{
    pid_t child, pid;
    int status;

    block_all_signals();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "beige-job");
    child = fork();
    if (child < 0)
        give_up(REPORT_NO_FORK);
    if (child == 0)
        run_command(command);
    for (int fd = 0; fd < REPORT_FD; fd++)
        close(fd); /* or the pipes would never show their ends */
    tell(REPORT_STARTED, child);
    do
        pid = waitpid(-1, &status, 0);
    while (pid > 0 ? pid != child : errno == EINTR);
    tell(REPORT_ENDED, pid == child ? status : SIGKILL);
    for (;;)
        pause();
}

static void close_from(unsigned first)
{
    if (syscall(SYS_close_range, first, ~0U, 0) < 0)
        for (int fd = (int)first; fd < 4096; fd++)
            close(fd);
}

/* Leaves this process with stdin, stdout, stderr and the report pipe, and nothing of other jobs. */
static void arrange_descriptors(const struct command *command, int ends[PIPES])
{
    /* Out of the way of 0 to 3 first: the pipes may have landed there. */
    for (int i = 0; i < PIPES; i++)
        if (ends[i] >= 0)
            ends[i] = fcntl(ends[i], F_DUPFD, PIPES);
    if (!command->has_stdin)
        ends[IN] = open("/dev/null", O_RDONLY);
    for (int i = 0; i < PIPES; i++)
        if (ends[i] < 0 || (ends[i] != i && dup2(ends[i], i) < 0))
            _exit(127);
    fcntl(REPORT_FD, F_SETFD, FD_CLOEXEC);
    close_from(PIPES);
}

static void close_pipes(int pipes[PIPES][2])
{
    for (int i = 0; i < PIPES; i++)
        for (int end = 0; end < 2; end++)
            if (pipes[i][end] >= 0)
                close(pipes[i][end]);
}

static bool open_pipes(int pipes[PIPES][2], bool has_stdin)
{
    memset(pipes, -1, sizeof(int[PIPES][2]));
    for (int i = has_stdin ? IN : OUT; i < PIPES; i++)
        if (pipe2(pipes[i], O_CLOEXEC) < 0)
            return false;
    return true;
}

/* Keeps our end of one pipe and closes the command's. */
static int keep(int pipe[2], int end)
{
    if (pipe[end] < 0)
        return -1;
    close(pipe[!end]);
    fcntl(pipe[end], F_SETFL, O_NONBLOCK);
    return pipe[end];
}

bool spawn(const struct command *command, struct started *started)
{
    int pipes[PIPES][2], saved;

    if (!open_pipes(pipes, command->has_stdin))
        goto failed;
    started->supervisor = fork();
    if (started->supervisor < 0)
        goto failed;
    if (started->supervisor == 0) {
        int ends[PIPES] = {pipes[IN][READ_END], pipes[OUT][WRITE_END], pipes[ERR][WRITE_END],
                           pipes[REPORT][WRITE_END]};
        arrange_descriptors(command, ends);
        supervise(command);
    }
    started->stdin_fd = keep(pipes[IN], WRITE_END);
    started->stdout_fd = keep(pipes[OUT], READ_END);
    started->stderr_fd = keep(pipes[ERR], READ_END);
    started->report = keep(pipes[REPORT], READ_END);
    return true;

failed:
    saved = errno;
    close_pipes(pipes);
    errno = saved;
    return false;
}
