#define _GNU_SOURCE
#include "proc.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct process {
    pid_t pid, parent;
    bool alive;
    bool doomed;
};

static struct {
    struct process *at;
    size_t count, capacity;
} snapshot;

void kill_one(pid_t pid, int signo)
{
    if (pid > 1)
        kill(pid, signo);
}

void kill_group(pid_t leader, int signo)
{
    if (leader > 1)
        kill(-leader, signo);
}

/* /proc/PID/stat: "pid (name) state ppid ...", where the name may hold spaces and parentheses. A
 * process whose first thread has exited shows as a zombie while its other threads run on, so only a
 * zombie without further threads counts as dead. */
static bool parse_stat(char *text, struct process *p)
{
    char *name_end = strrchr(text, ')');
    char state;
    long threads = 0;

    if (!name_end)
        return false;
    if (sscanf(name_end + 1,
               " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld", &state,
               &p->parent, &threads) < 2)
        return false;
    p->alive = !(state == 'Z' || state == 'X') || threads > 1;
    p->doomed = false;
    return true;
}

static bool read_process(const char *name, struct process *p)
{
    char path[64], text[512];
    ssize_t n;
    int fd;

    if (snprintf(path, sizeof path, "/proc/%s/stat", name) >= (int)sizeof path)
        return false;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    p->pid = (pid_t)strtol(name, NULL, 10);
    return parse_stat(text, p);
}

static bool snapshot_add(const struct process *p)
{
    if (snapshot.count == snapshot.capacity) {
        size_t capacity = snapshot.capacity ? 2 * snapshot.capacity : 256;
        struct process *grown = realloc(snapshot.at, capacity * sizeof *grown);
        if (!grown)
            return false;
        snapshot.at = grown;
        snapshot.capacity = capacity;
    }
    snapshot.at[snapshot.count++] = *p;
    return true;
}

static int by_pid(const void *a, const void *b)
{
    pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
    return (x > y) - (x < y);
}

/* False when the list may be incomplete. */
static bool take_snapshot(void)
{
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    struct process p;
    bool complete = true;

    snapshot.count = 0;
    if (!dir)
        return false;
    while ((entry = readdir(dir)))
        if (isdigit((unsigned char)entry->d_name[0]) && read_process(entry->d_name, &p))
            complete = snapshot_add(&p) && complete;
    closedir(dir);
    if (snapshot.count)
        qsort(snapshot.at, snapshot.count, sizeof *snapshot.at, by_pid);
    return complete;
}

static struct process *find(pid_t pid)
{
    struct process key = {.pid = pid};

    if (!snapshot.count)
        return NULL;
    return bsearch(&key, snapshot.at, snapshot.count, sizeof key, by_pid);
}

static bool listed(pid_t pid, const pid_t *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == pid)
            return true;
    return false;
}

/* Marks the descendants of `root`. Children mostly follow their parents in pid order, so that one
 * sweep does nearly all of it. */
static void mark_descendants(pid_t root, const pid_t *spared, size_t spared_count)
{
    bool changed = true;

    while (changed) {
        changed = false;
        for (size_t i = 0; i < snapshot.count; i++) {
            struct process *p = &snapshot.at[i], *parent;
            if (p->doomed || p->pid == root)
                continue;
            if (p->parent == root) {
                p->doomed = !listed(p->pid, spared, spared_count);
            } else {
                parent = find(p->parent);
                p->doomed = parent && parent->doomed;
            }
            changed = changed || p->doomed;
        }
    }
}

/* A living process whose parent the snapshot missed: the parent died while we were reading, and the
 * process may belong to the tree. */
static bool is_unplaced(const struct process *p) { return p->alive && p->parent != 0 && !find(p->parent); }

bool kill_descendants(pid_t root, const pid_t *spared, size_t spared_count)
{
    bool clean = take_snapshot();

    mark_descendants(root, spared, spared_count);
    for (size_t i = 0; i < snapshot.count; i++) {
        struct process *p = &snapshot.at[i];
        if (p->doomed && p->alive) {
            kill_one(p->pid, SIGKILL);
            clean = false;
        }
        clean = clean && !is_unplaced(p);
    }
    return clean;
}

void kill_everything(void)
{
    if (getpid() == 1)
        kill(-1, SIGKILL); /* atomic against fork(): a fork bomb cannot outrun it */
    else
        kill_descendants(getpid(), NULL, 0);
}
