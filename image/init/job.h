/* The commands that are running: at most MAX_JOBS, each with its supervisor, pipes and limits. */
#ifndef BEIGE_JOB_H
#define BEIGE_JOB_H

#include "conn.h"
#include "stream.h"

#include <poll.h>
#include <sys/types.h>

enum {
    MAX_JOBS = 64,
    POLLS_PER_JOB = 4, /* report, stdin, stdout, stderr */
    /* How long a new supervisor may take to report its command before it counts as lost. */
    START_DEADLINE_MS = 2000,
};

/* Handles a frame that names a job. False: it was malformed. */
bool job_handle(struct frame *frame, int64_t now_ms);

/* Appends what the jobs wait for to `fds` and returns the new count; jobs_serve gets the same array
 * back after poll(). */
size_t jobs_poll(struct pollfd *fds, size_t count);
void jobs_serve(const struct pollfd *fds);

/* A child of ours has been reaped. */
void jobs_reaped(pid_t pid, int status);
/* Deadlines, one kill pass for each dying tree, and the EXIT of whatever is complete. */
void jobs_advance(int64_t now_ms);
/* The next deadline, or -1. */
int64_t jobs_deadline_ms(void);
/* Some tree is being killed: come back soon. */
bool jobs_dying(void);
bool jobs_none(void);
/* All are about to be killed from outside; nothing of theirs waits for credit any more. */
void jobs_abandon(void);

#endif
