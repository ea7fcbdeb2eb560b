/* Killing: the only file that sends a signal to anything.
 *
 * The executor may also run outside a container (unit tests). kill(-1) would then reach every process
 * of the machine, so kill_everything uses it only as PID 1 of a pid namespace and walks its own
 * descendants otherwise. */
#ifndef BEIGE_PROC_H
#define BEIGE_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Pids 0, 1 and below are never signalled, whatever a caller got wrong. */
void kill_one(pid_t pid, int signo);
void kill_group(pid_t leader, int signo);

/* One pass: SIGKILL to every descendant of `root`, except the subtrees whose top is a child of `root`
 * named in `spared`. True when the pass found nobody left alive; the caller repeats until then. */
bool kill_descendants(pid_t root, const pid_t *spared, size_t spared_count);

/* One pass over everything but this process, supervisors included. */
void kill_everything(void);

#endif
