/* Starting a command below a supervisor of its own.
 *
 *   executor ── supervisor (subreaper) ── command ── ... ── double-forked daemon
 *
 * The supervisor only exists so that everything the command starts stays below it, whatever calls
 * setsid or forks twice: that makes the tree findable. It reports the command's end and then waits for
 * its own SIGKILL from the executor, which so decides when the survivors become children of PID 1. */
#ifndef BEIGE_SPAWN_H
#define BEIGE_SPAWN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct command {
    const char *cwd;
    char **argv, **envp;
    bool has_stdin;
};

/* What arrives on the report pipe, in one atomic write each. */
enum report_kind {
    REPORT_STARTED = 1, /* value: pid of the command */
    REPORT_ENDED,       /* value: its wait status */
    REPORT_NO_FORK,     /* value: errno; likewise below */
    REPORT_NO_CWD,
    REPORT_NO_EXEC,
};

struct report {
    int32_t kind, value;
};

struct started {
    pid_t supervisor;
    int report;                         /* read end */
    int stdin_fd, stdout_fd, stderr_fd; /* our ends; stdin_fd is -1 without stdin */
};

/* All descriptors handed out are non-blocking. False: errno says why, nothing is left behind. */
bool spawn(const struct command *command, struct started *started);

/* Takes back what whoever started the executor left ignored: its commands inherit the rest. */
void default_signals(void);

#endif
