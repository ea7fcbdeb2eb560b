/* /beige/tool-client TOOL ARGS...: calls a governed tool through the gateway's socket.
 *
 *   sends     {"type":"tool_request","tool":T,"args":[..],"token":K,"cwd":D} LF
 *   receives  {"type":"tool_response","success":B,"output":S,"error":S,"exitCode":N} LF
 *
 * Trust: the answer may carry whatever a tool printed, so it is parsed with bounds on size and depth and
 * nothing in it is interpreted. The token comes from the environment the executor set, and names the
 * session; identity itself comes from the socket.
 *
 * Exit codes of its own: 2 wrong arguments, 69 gateway not reachable, 70 unusable answer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, EXIT_UNREACHABLE = 69, EXIT_BAD_ANSWER = 70 };
enum { MAX_REQUEST = 8 << 20, MAX_ANSWER = 8 << 20, MAX_DEPTH = 32 };

static _Noreturn __attribute__((format(printf, 2, 3))) void fail(int code, const char *format, ...)
{
    va_list args;

    fflush(stdout);
    fputs("tool-client: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(code);
}

/* --- the request --- */

struct text {
    char *at;
    size_t length, capacity;
};

static void append(struct text *t, const char *bytes, size_t n)
{
    if (n > MAX_REQUEST - t->length)
        fail(EXIT_USAGE, "the arguments are longer than %d bytes", MAX_REQUEST);
    if (t->length + n > t->capacity) {
        t->capacity = 2 * (t->length + n) + 4096;
        t->at = realloc(t->at, t->capacity);
        if (!t->at)
            fail(EXIT_USAGE, "out of memory");
    }
    memcpy(t->at + t->length, bytes, n);
    t->length += n;
}

static void append_raw(struct text *t, const char *s) { append(t, s, strlen(s)); }

/* Length of the well-formed UTF-8 sequence at `s` (RFC 3629: no overlong forms, no surrogates, nothing
 * above U+10FFFF), or 0. `s` is NUL-terminated, and a NUL is no continuation byte. */
static size_t utf8_length(const unsigned char *s)
{
    unsigned char low = 0x80, high = 0xBF;
    size_t length;

    if (s[0] < 0x80)
        return 1;
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return 0;
    length = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (s[0] == 0xE0)
        low = 0xA0;
    if (s[0] == 0xED)
        high = 0x9F;
    if (s[0] == 0xF0)
        low = 0x90;
    if (s[0] == 0xF4)
        high = 0x8F;
    if (s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if (s[i] < 0x80 || s[i] > 0xBF)
            return 0;
    return length;
}

static void append_character(struct text *t, const char *s, size_t n)
{
    char escaped[8];
    unsigned char c = (unsigned char)*s;

    if (c == '"' || c == '\\')
        append(t, "\\", 1);
    if (c < 0x20 || c == 0x7F) {
        snprintf(escaped, sizeof escaped, "\\u%04x", c);
        append(t, escaped, 6);
    } else {
        append(t, s, n);
    }
}

static void append_string(struct text *t, const char *what, const char *s)
{
    append(t, "\"", 1);
    while (*s) {
        size_t n = utf8_length((const unsigned char *)s);
        if (!n)
            fail(EXIT_USAGE, "%s is not valid UTF-8, and a tool call is JSON", what);
        append_character(t, s, n);
        s += n;
    }
    append(t, "\"", 1);
}

static struct text build_request(int argc, char **argv)
{
    struct text t = {0};
    const char *token = getenv("BEIGE_CALL_TOKEN");
    char *cwd = getcwd(NULL, 0);
    char what[32];

    append_raw(&t, "{\"type\":\"tool_request\",\"tool\":");
    append_string(&t, "the tool's name", argv[1]);
    append_raw(&t, ",\"args\":[");
    for (int i = 2; i < argc; i++) {
        snprintf(what, sizeof what, "argument %d", i - 1);
        append_raw(&t, i > 2 ? "," : "");
        append_string(&t, what, argv[i]);
    }
    append_raw(&t, "]");
    if (token && *token) {
        append_raw(&t, ",\"token\":");
        append_string(&t, "BEIGE_CALL_TOKEN", token);
    }
    if (cwd) {
        append_raw(&t, ",\"cwd\":");
        append_string(&t, "the working directory", cwd);
    }
    append_raw(&t, "}\n");
    free(cwd);
    return t;
}

/* --- the connection --- */

static int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("BEIGE_GATEWAY_SOCK");
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (!path || !*path)
        path = "/beige/gateway.sock";
    if (strlen(path) >= sizeof address.sun_path)
        fail(EXIT_UNREACHABLE, "the socket's path is too long: %s", path);
    strcpy(address.sun_path, path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail(EXIT_UNREACHABLE, "the gateway is not reachable at %s: %s", path, strerror(errno));
    return fd;
}

static void send_request(int fd, const struct text *request)
{
    for (size_t sent = 0; sent < request->length;) {
        ssize_t n = send(fd, request->at + sent, request->length - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return; /* it may have answered before it hung up: read that */
        sent += (size_t)n;
    }
}

/* One line without its end, NUL-terminated. An answer ended by a hang-up is judged by the parser. */
static struct text receive_line(int fd)
{
    struct text line = {.capacity = 1 << 16};
    char *newline = NULL;
    ssize_t n = 1;

    line.at = malloc(line.capacity + 1);
    while (line.at && !newline && n > 0) {
        if (line.length > MAX_ANSWER)
            fail(EXIT_BAD_ANSWER, "the answer is longer than %d bytes", MAX_ANSWER);
        if (line.length == line.capacity) {
            line.capacity *= 2;
            line.at = realloc(line.at, line.capacity + 1);
            continue;
        }
        n = read(fd, line.at + line.length, line.capacity - line.length);
        if (n < 0 && errno == EINTR) {
            n = 1;
        } else if (n > 0) {
            newline = memchr(line.at + line.length, '\n', (size_t)n);
            line.length += (size_t)n;
        }
    }
    if (!line.at)
        fail(EXIT_BAD_ANSWER, "out of memory");
    if (newline)
        line.length = (size_t)(newline - line.at);
    if (line.length > MAX_ANSWER)
        fail(EXIT_BAD_ANSWER, "the answer is longer than %d bytes", MAX_ANSWER);
    line.at[line.length] = '\0';
    return line;
}

/* --- the answer: a JSON parser that decodes strings in place (decoded text is never longer) --- */

struct parser {
    char *at, *end; /* *end is NUL: looking one byte ahead is safe */
    int depth;
};

struct span {
    char *at; /* NULL: absent or null */
    size_t length;
};

static _Noreturn void malformed(const char *why) { fail(EXIT_BAD_ANSWER, "malformed answer: %s", why); }

static void skip_space(struct parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r'))
        p->at++;
}

static bool take(struct parser *p, char c)
{
    skip_space(p);
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

static void expect(struct parser *p, char c, const char *why)
{
    if (!take(p, c))
        malformed(why);
}

static uint32_t hex4(struct parser *p)
{
    uint32_t value = 0;

    if (p->end - p->at < 4)
        malformed("cut off inside \\u");
    for (int i = 0; i < 4; i++) {
        char c = *p->at++;
        if (c >= '0' && c <= '9')
            value = value * 16 + (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            value = value * 16 + (uint32_t)((c | 0x20) - 'a' + 10);
        else
            malformed("not a hexadecimal digit after \\u");
    }
    return value;
}

/* After "\u". A surrogate without its other half becomes U+FFFD, as in other decoders. */
static uint32_t unicode_escape(struct parser *p)
{
    uint32_t high = hex4(p), low;
    char *after_high = p->at;

    if (high < 0xD800 || high > 0xDFFF)
        return high;
    if (high > 0xDBFF || p->end - p->at < 6 || p->at[0] != '\\' || p->at[1] != 'u')
        return 0xFFFD;
    p->at += 2;
    low = hex4(p);
    if (low >= 0xDC00 && low <= 0xDFFF)
        return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    p->at = after_high; /* an escape of its own */
    return 0xFFFD;
}

static char *encode_utf8(char *out, uint32_t code)
{
    if (code < 0x80) {
        *out++ = (char)code;
    } else if (code < 0x800) {
        *out++ = (char)(0xC0 | code >> 6);
        *out++ = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *out++ = (char)(0xE0 | code >> 12);
        *out++ = (char)(0x80 | (code >> 6 & 0x3F));
        *out++ = (char)(0x80 | (code & 0x3F));
    } else {
        *out++ = (char)(0xF0 | code >> 18);
        *out++ = (char)(0x80 | (code >> 12 & 0x3F));
        *out++ = (char)(0x80 | (code >> 6 & 0x3F));
        *out++ = (char)(0x80 | (code & 0x3F));
    }
    return out;
}

static char *decode_escape(struct parser *p, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found;
    char c;

    if (p->at == p->end)
        malformed("cut off inside a string");
    c = *p->at++;
    if (c == 'u')
        return encode_utf8(out, unicode_escape(p));
    found = c ? strchr(from, c) : NULL;
    if (!found)
        malformed("unknown escape in a string");
    *out++ = to[found - from];
    return out;
}

static struct span parse_string(struct parser *p)
{
    char *start, *out;

    expect(p, '"', "a string was expected");
    start = out = p->at;
    for (;;) {
        if (p->at == p->end)
            malformed("cut off inside a string");
        if (*p->at == '"')
            break;
        if ((unsigned char)*p->at < 0x20)
            malformed("control character in a string");
        if (*p->at == '\\') {
            p->at++;
            out = decode_escape(p, out);
        } else {
            *out++ = *p->at++;
        }
    }
    p->at++;
    return (struct span){start, (size_t)(out - start)};
}

static bool accept_word(struct parser *p, const char *word)
{
    size_t n = strlen(word);

    skip_space(p);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return false;
    p->at += n;
    return true;
}

static struct span parse_string_or_null(struct parser *p)
{
    return accept_word(p, "null") ? (struct span){0} : parse_string(p);
}

static bool parse_bool(struct parser *p)
{
    if (accept_word(p, "true"))
        return true;
    if (!accept_word(p, "false"))
        malformed("\"success\" is neither true nor false");
    return false;
}

static long parse_integer(struct parser *p)
{
    char *after;
    long value;

    skip_space(p);
    errno = 0;
    value = strtol(p->at, &after, 10); /* stops at the NUL behind the answer at the latest */
    if (after == p->at || errno || strchr(".eE", *after ? *after : ' '))
        malformed("\"exitCode\" is not an integer");
    p->at = after;
    return value;
}

static void skip_value(struct parser *p);

static void skip_members(struct parser *p, char close, bool named)
{
    if (++p->depth > MAX_DEPTH)
        malformed("nested too deeply");
    if (!take(p, close)) {
        do {
            if (named) {
                parse_string(p);
                expect(p, ':', "a colon was expected");
            }
            skip_value(p);
        } while (take(p, ','));
        expect(p, close, "a list or object does not end");
    }
    p->depth--;
}

static void skip_number(struct parser *p)
{
    size_t n = strspn(p->at, "+-.0123456789eE");

    if (!n)
        malformed("a value was expected");
    p->at += n;
}

static void skip_value(struct parser *p)
{
    skip_space(p);
    if (*p->at == '"')
        parse_string(p);
    else if (take(p, '{'))
        skip_members(p, '}', true);
    else if (take(p, '['))
        skip_members(p, ']', false);
    else if (!accept_word(p, "true") && !accept_word(p, "false") && !accept_word(p, "null"))
        skip_number(p);
}

struct answer {
    bool success, has_success, has_exit_code;
    struct span output, error, type;
    long exit_code;
};

static bool is(struct span s, const char *text)
{
    return s.at && s.length == strlen(text) && memcmp(s.at, text, s.length) == 0;
}

static void parse_member(struct parser *p, struct answer *a)
{
    struct span name = parse_string(p);

    expect(p, ':', "a colon was expected");
    if (is(name, "output")) {
        a->output = parse_string_or_null(p);
    } else if (is(name, "error")) {
        a->error = parse_string_or_null(p);
    } else if (is(name, "type")) {
        a->type = parse_string(p);
    } else if (is(name, "success")) {
        a->success = parse_bool(p);
        a->has_success = true;
    } else if (is(name, "exitCode") && !accept_word(p, "null")) {
        a->exit_code = parse_integer(p);
        a->has_exit_code = true;
    } else if (!is(name, "exitCode")) {
        skip_value(p);
    }
}

static struct answer parse_answer(struct text *line)
{
    struct parser p = {.at = line->at, .end = line->at + line->length};
    struct answer a = {0};

    if (line->length == 0)
        fail(EXIT_BAD_ANSWER, "the gateway hung up without an answer");
    expect(&p, '{', "an object was expected");
    if (!take(&p, '}')) {
        do
            parse_member(&p, &a);
        while (take(&p, ','));
        expect(&p, '}', "the object does not end");
    }
    skip_space(&p);
    if (p.at != p.end)
        malformed("something follows the object");
    if (!is(a.type, "tool_response") || !a.has_success)
        malformed("not a tool_response");
    return a;
}

static void print_line(FILE *to, struct span s)
{
    if (!s.at || !s.length)
        return;
    fwrite(s.at, 1, s.length, to);
    if (s.at[s.length - 1] != '\n')
        fputc('\n', to);
}

/* A shell sees eight bits: what does not fit must not turn into success. */
static int exit_code(const struct answer *a)
{
    long code = a->has_exit_code ? a->exit_code : a->success ? 0 : 1;

    if (code < 0 || code > 255 || (code == 0 && !a->success))
        return 1;
    return (int)code;
}

int main(int argc, char **argv)
{
    struct text request, line;
    struct answer answer;
    int fd, code;

    if (argc < 2)
        fail(EXIT_USAGE, "usage: tool-client TOOL [ARGUMENT...]");
    request = build_request(argc, argv);
    fd = dial();
    send_request(fd, &request);
    line = receive_line(fd);
    close(fd);
    answer = parse_answer(&line);
    print_line(stdout, answer.output);
    print_line(stderr, answer.error);
    code = exit_code(&answer);
    free(request.at);
    free(line.at);
    return fflush(stdout) == 0 ? code : EXIT_BAD_ANSWER;
}
