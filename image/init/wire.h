/* The private channel between the sandbox service (the host) and the executor (the box).
 *
 *   frame = | u32 length of the rest | u8 type | u32 job | payload ... |     all integers little endian
 *             5 .. 262149                                 0 .. 262144
 *
 *   host to box                                payload
 *    1 RUN           u32 timeout_ms (0: none) | u32 flags | u64 limit_bytes | u32 credit_bytes
 *                    | cwd NUL | u16 argc | argc x (text NUL) | u16 envc | envc x (text NUL)
 *    2 STDIN         bytes; empty: end of file
 *    3 KILL          -            SIGKILL to the job's whole tree
 *    4 RESET         -            SIGKILL to everything but the executor; answered by PONG when done
 *    5 PING          -
 *    6 CREDIT        u32          more bytes of output the box may send for this job
 *    7 SIGNAL        u32          signal number, for the command's process group
 *
 *   box to host
 *   16 STDOUT        bytes
 *   17 STDERR        bytes
 *   18 EXIT          i32 status (exit code, or minus the signal) | u8 flags | u64 stdout | u64 stderr
 *                    (bytes produced); ends the job
 *   19 ERROR         i32 errno | text: the command could not be started; ends the job
 *   20 HELLO         u32 protocol version | u32 pid; the first frame of every connection
 *   21 PONG          -            same job field as the PING or RESET
 *   22 STDIN_CREDIT  u32          more bytes of input the host may send for this job
 *   23 STDOUT_TAIL   bytes        the last bytes of what was not forwarded, right before EXIT
 *   24 STDERR_TAIL   bytes
 *
 * Frames for a job that has ended are ignored: they crossed its EXIT on the way. Anything else that
 * does not fit this page ends the connection, and with it every process of the box.
 */
#ifndef BEIGE_WIRE_H
#define BEIGE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PROTOCOL_VERSION = 1,
    LENGTH_BYTES = 4,
    HEADER_BYTES = 9, /* length, type, job */
    MAX_PAYLOAD = 262144,
    STDIN_WINDOW = 262144,
    TAIL_BYTES = 16384,
};

enum host_frame { RUN = 1, STDIN = 2, KILL = 3, RESET = 4, PING = 5, CREDIT = 6, SIGNAL = 7 };

enum box_frame {
    STDOUT = 16,
    STDERR = 17,
    EXIT = 18,
    ERROR = 19,
    HELLO = 20,
    PONG = 21,
    STDIN_CREDIT = 22,
    STDOUT_TAIL = 23,
    STDERR_TAIL = 24,
};

enum run_flags { RUN_HAS_STDIN = 1 };
enum exit_flags { EXIT_TIMED_OUT = 1, EXIT_KILLED = 2 };

/* Reads a payload from front to back. After a read beyond the end `bad` stays true and every further
 * read yields zero, so that a decoder checks once, at its end. */
struct cursor {
    const uint8_t *at, *end;
    bool bad;
};

uint16_t take_u16(struct cursor *c);
uint32_t take_u32(struct cursor *c);
uint64_t take_u64(struct cursor *c);
/* The NUL-terminated text at the cursor, in place; NULL when it has no end. */
const char *take_text(struct cursor *c);

void put_u32(uint8_t *at, uint32_t value);
void put_u64(uint8_t *at, uint64_t value);

#endif
