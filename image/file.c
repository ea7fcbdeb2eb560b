/* /beige/file: what the core tools read and write do inside, in one program instead of five.
 *
 * It runs as the agent and can do nothing the agent could not do itself; what it prints is hostile to the
 * gateway like all that comes out of a container. The scripts in services/sandbox/scripts.py do the same
 * for images without it, with the same exit codes.
 *
 *   file read PATH MOST          the file's size, a newline, at most MOST of its first bytes
 *   file write PATH NAME SIZE    stdin, which must have SIZE bytes, becomes the file, whole or not at all:
 *                                it goes to NAME beside it first. Prints 1 if the file is new, else 0.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MISSING = 90, DIRECTORY, SPECIAL, FORBIDDEN, SHORT = 95, BROKEN };
enum { MAX_LINKS = 40, CHUNK = 256 * 1024 };

static char buffer[CHUNK];
static char temporary[PATH_MAX]; /* empty: there is none */

static _Noreturn void fail(const char *what)
{
    int error = errno;

    if (temporary[0])
        unlink(temporary);
    if (error == EFBIG) { /* the sandbox's limit for one file; said as the kernel would have */
        signal(SIGXFSZ, SIG_DFL);
        raise(SIGXFSZ);
    }
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    exit(BROKEN);
}

static _Noreturn void refuse(int status)
{
    if (temporary[0])
        unlink(temporary);
    exit(status);
}

/* false: a name that is too long. */
static bool join(char *path, const char *directory, size_t length, const char *name)
{
    int n = snprintf(path, PATH_MAX, "%.*s%s", (int)length, directory, name);

    if (n < PATH_MAX)
        return true;
    errno = ENAMETOOLONG;
    return false;
}

/* Bytes of `path` up to and with its last slash. */
static size_t directory_length(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? (size_t)(slash - path) + 1 : 0;
}

static void write_all(int fd, const char *bytes, size_t n, const char *what)
{
    while (n) {
        ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno != EINTR)
            fail(what);
        if (done > 0) {
            bytes += done;
            n -= (size_t)done;
        }
    }
}

/* Less than asked for only at the end. */
static size_t read_chunk(int fd, size_t most, const char *what)
{
    ssize_t n;

    do
        n = read(fd, buffer, most < CHUNK ? most : CHUNK);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        fail(what);
    return (size_t)n;
}

static unsigned long long number(const char *text)
{
    char *end;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno || *end || end == text)
        exit(2);
    return value;
}

/* --- read --- */

/* The size comes before the first byte is read: of a device or a pipe nothing ever is. */
static int open_regular(const char *path, struct stat *seen)
{
    int fd;

    if (stat(path, seen) < 0)
        refuse(MISSING);
    if (S_ISDIR(seen->st_mode))
        refuse(DIRECTORY);
    if (!S_ISREG(seen->st_mode))
        refuse(SPECIAL);
    fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        refuse(errno == EACCES || errno == EPERM ? FORBIDDEN : MISSING);
    if (fstat(fd, seen) < 0 || !S_ISREG(seen->st_mode))
        refuse(SPECIAL); /* changed since */
    return fd;
}

static int do_read(const char *path, unsigned long long left)
{
    struct stat seen;
    int fd = open_regular(path, &seen);
    char line[32];
    size_t n;

    fcntl(STDOUT_FILENO, F_SETPIPE_SZ, CHUNK);
    n = (size_t)snprintf(line, sizeof line, "%lld\n", (long long)seen.st_size);
    write_all(STDOUT_FILENO, line, n, "stdout");
    while (left && (n = read_chunk(fd, left < CHUNK ? (size_t)left : CHUNK, "read")) > 0) {
        write_all(STDOUT_FILENO, buffer, n, "stdout");
        left -= n;
    }
    return 0;
}

/* --- write --- */

/* Where a path that may be a symlink leads, as a plain write would follow it. */
static void follow(char *path, const char *given)
{
    char target[PATH_MAX];
    struct stat seen;
    ssize_t n;
    int links = 0;

    if (!join(path, given, strlen(given), ""))
        fail("path");
    while (lstat(path, &seen) == 0 && S_ISLNK(seen.st_mode)) {
        char from[PATH_MAX];
        n = readlink(path, target, sizeof target - 1);
        if (n < 0 || ++links > MAX_LINKS)
            refuse(MISSING);
        target[n] = '\0';
        strcpy(from, path);
        if (!join(path, from, target[0] == '/' ? 0 : directory_length(from), target))
            refuse(MISSING);
    }
    if (!path[directory_length(path)])
        refuse(DIRECTORY);
    if (links) { /* the directory a link points into is not made */
        char directory[PATH_MAX];
        join(directory, path, directory_length(path), "");
        if (stat(directory, &seen) < 0)
            refuse(MISSING);
    }
}

static void make_directories(char *path)
{
    char directory[PATH_MAX];
    struct stat seen;

    if (join(directory, path, directory_length(path), "") && stat(directory, &seen) == 0)
        return;
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        if (mkdir(path, 0777) < 0 && errno != EEXIST)
            fail("making its directory");
        *slash = '/';
    }
}

/* The mode the file has and keeps; a new one gets 644. */
static mode_t look_at(const char *path, bool *is_new)
{
    struct stat seen;

    *is_new = stat(path, &seen) < 0;
    if (*is_new)
        return 0644;
    if (S_ISDIR(seen.st_mode))
        refuse(DIRECTORY);
    if (!S_ISREG(seen.st_mode))
        refuse(SPECIAL);
    if (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) < 0)
        refuse(FORBIDDEN);
    return seen.st_mode & 07777;
}

static int do_write(const char *given, const char *name, unsigned long long size)
{
    char path[PATH_MAX], beside[PATH_MAX];
    unsigned long long seen = 0;
    bool is_new;
    mode_t mode;
    size_t n;
    int fd;

    umask(022);
    signal(SIGXFSZ, SIG_IGN);
    fcntl(STDIN_FILENO, F_SETPIPE_SZ, CHUNK);
    follow(path, given);
    mode = look_at(path, &is_new);
    make_directories(path);
    if (!join(beside, path, directory_length(path), name))
        fail("path");
    fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        fail("creating a file beside it");
    strcpy(temporary, beside);
    while ((n = read_chunk(STDIN_FILENO, CHUNK, "stdin")) > 0) {
        write_all(fd, buffer, n, "write");
        seen += n;
    }
    if (seen != size)
        refuse(SHORT);
    if ((mode != 0644 && fchmod(fd, mode) < 0) || close(fd) < 0 || rename(temporary, path) < 0)
        fail("moving it into place");
    write_all(STDOUT_FILENO, is_new ? "1\n" : "0\n", 2, "stdout");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "read"))
        return do_read(argv[2], number(argv[3]));
    if (argc == 5 && !strcmp(argv[1], "write"))
        return do_write(argv[2], argv[3], number(argv[4]));
    fprintf(stderr, "usage: file read PATH MOST | file write PATH NAME SIZE\n");
    return 2;
}
