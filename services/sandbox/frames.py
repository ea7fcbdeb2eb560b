"""The executor's frames: strict decoding of what a container sends, encoding of what we send it.

    +------------------------+---------+-------------+------------------+
    | u32 length of the rest | u8 type | u32 job     | payload          |   all little-endian
    +------------------------+---------+-------------+------------------+

The peer is PID 1 of a container that runs an untrusted agent: every byte is hostile. The decoder is
pure, refuses a frame as soon as its header shows that it is wrong, and never holds more than one
frame. What a frame means for a job (credit, order, known ids) is `executor.py`'s to check.
`image/init.c` is the other side. Test: `tests/unit/sandbox/test_frames.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PROTOCOL = 1
MAX_PAYLOAD = 262144
STDIN_WINDOW = 262144
"""Bytes of stdin a job may be sent before the executor grants more."""
TAIL_BYTES = 16384
"""The executor keeps at most so many bytes of each stream beyond its limit."""
MAX_TOTAL = 2**60
MAX_TEXT = 4096
"""Bytes of the text of an ERROR."""

RUN, STDIN, KILL, RESET, PING, CREDIT, SIGNAL = range(1, 8)
STDOUT, STDERR, EXIT, ERROR, HELLO, PONG, STDIN_CREDIT, STDOUT_TAIL, STDERR_TAIL = range(16, 25)

_HEADER = struct.Struct("<IBI")
_AFTER_LENGTH = 5
_EXIT = struct.Struct("<iBQQ")
_HELLO = struct.Struct("<II")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_RUN = struct.Struct("<IIQI")
_U16 = struct.Struct("<H")

# Payload sizes, least and most, by type. Nothing else is accepted.
_SIZES: dict[int, tuple[int, int]] = {
    STDOUT: (1, MAX_PAYLOAD),
    STDERR: (1, MAX_PAYLOAD),
    EXIT: (_EXIT.size, _EXIT.size),
    ERROR: (4, 4 + MAX_TEXT),
    HELLO: (_HELLO.size, _HELLO.size),
    PONG: (0, 0),
    STDIN_CREDIT: (4, 4),
    STDOUT_TAIL: (0, TAIL_BYTES),
    STDERR_TAIL: (0, TAIL_BYTES),
}


class Violation(Exception):
    """The container broke the protocol; its connection must be closed."""


@dataclass(frozen=True, slots=True)
class Output:
    job: int
    stream: str
    """`stdout` or `stderr`."""
    data: bytes
    tail: bool = False
    """The last bytes beyond the limit, not the next ones."""


@dataclass(frozen=True, slots=True)
class Exited:
    job: int
    status: int
    """Exit code, or the negative number of the signal that ended it."""
    timed_out: bool
    killed: bool
    stdout_total: int
    stderr_total: int


@dataclass(frozen=True, slots=True)
class JobError:
    job: int
    errno: int
    text: str


@dataclass(frozen=True, slots=True)
class Hello:
    version: int
    pid: int


@dataclass(frozen=True, slots=True)
class Pong:
    job: int


@dataclass(frozen=True, slots=True)
class StdinCredit:
    job: int
    credit: int


Event = Output | Exited | JobError | Hello | Pong | StdinCredit


class Decoder:
    """Bytes in, events out. After a Violation it must not be fed again."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def held(self) -> int:
        """Bytes waiting for the rest of their frame."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Event]:
        """The events that `data` completes, in order. Violation on the first wrong frame."""
        self._buffer += data
        events: list[Event] = []
        position = 0
        while len(self._buffer) - position >= _HEADER.size:
            length, kind, job = _HEADER.unpack_from(self._buffer, position)
            size = length - _AFTER_LENGTH
            _check_size(kind, size)
            start = position + _HEADER.size
            if len(self._buffer) - start < size:
                break
            events.append(_event(kind, job, bytes(self._buffer[start : start + size])))
            position = start + size
        del self._buffer[:position]
        return events


def _check_size(kind: int, size: int) -> None:
    bounds = _SIZES.get(kind)
    if bounds is None:
        raise Violation(f"unknown frame type {kind}")
    if not bounds[0] <= size <= bounds[1]:
        raise Violation(f"frame type {kind} with a payload of {size} bytes")


def _event(kind: int, job: int, payload: bytes) -> Event:
    match kind:
        case 16:
            return Output(job, "stdout", payload)
        case 17:
            return Output(job, "stderr", payload)
        case 18:
            return _exited(job, payload)
        case 19:
            text = payload[4:].decode("utf-8", "replace")
            return JobError(job, _I32.unpack_from(payload)[0], text)
        case 20:
            return Hello(*_HELLO.unpack(payload))
        case 21:
            return Pong(job)
        case 22:
            return StdinCredit(job, _U32.unpack(payload)[0])
        case _:
            return Output(job, "stdout" if kind == STDOUT_TAIL else "stderr", payload, tail=True)


def _exited(job: int, payload: bytes) -> Exited:
    status, flags, stdout_total, stderr_total = _EXIT.unpack(payload)
    if flags & ~3:
        raise Violation(f"unknown exit flags {flags:#x}")
    if not -64 <= status <= 255:
        raise Violation(f"exit status {status}")
    if max(stdout_total, stderr_total) > MAX_TOTAL:
        raise Violation("more output than anybody can produce")
    return Exited(job, status, bool(flags & 1), bool(flags & 2), stdout_total, stderr_total)


# --- host to container -----------------------------------------------------------------------------


def frame(kind: int, job: int, payload: bytes | memoryview = b"") -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"payload of {len(payload)} bytes is over {MAX_PAYLOAD}")
    return _HEADER.pack(len(payload) + _AFTER_LENGTH, kind, job) + payload


def run_payload(
    argv: Sequence[bytes],
    env: Mapping[bytes, bytes],
    cwd: bytes,
    *,
    timeout_ms: int,
    has_stdin: bool,
    limit_bytes: int,
    credit_bytes: int,
) -> bytes:
    """The payload of a RUN. ValueError if a string holds a NUL or there is nothing to run; the
    caller checks the size against MAX_PAYLOAD."""
    strings = [name + b"=" + value for name, value in env.items()]
    if not argv or any(b"\0" in text for text in (cwd, *argv, *strings)):
        raise ValueError("a NUL byte in the command, its environment or directory, or no command")
    parts = [_RUN.pack(timeout_ms, int(has_stdin), limit_bytes, credit_bytes), cwd, b"\0"]
    for group in (argv, strings):
        parts.append(_U16.pack(len(group)))
        parts.extend(text + b"\0" for text in group)
    return b"".join(parts)


def credit(job: int, count: int) -> bytes:
    return frame(CREDIT, job, _U32.pack(count))
