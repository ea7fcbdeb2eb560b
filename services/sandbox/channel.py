"""How a command reaches a container: the interface both channels have, and what they share.

`executor.py` is the fast one (frames over a Unix socket to PID 1), `fallback.py` goes through
`docker exec` for images without our executor. Both keep at most `limit_bytes` of the head and 16
KiB of the tail of each stream, whatever the command prints.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from services.sandbox.frames import TAIL_BYTES

StreamName = Literal["stdout", "stderr"]
OnOutput = Callable[[str, bytes], Awaitable[None]]
"""Called with (stream, data) in order of arrival, up to the limit. While it waits, the command's
pipe fills and the command stops writing: that is the back-pressure."""

MAX_ARGUMENT = 131071
"""Linux's MAX_ARG_STRLEN, less the NUL: no single argument can be longer."""


@dataclass(frozen=True)
class Command:
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment."""
    cwd: str = "/workspace"
    stdin: bytes | AsyncIterator[bytes] | None = None
    """None: /dev/null. An iterator that raises kills the command; the error reaches `run`'s caller."""
    timeout_s: float = 60.0
    limit_bytes: int = 256 * 1024
    """Of each stream: what is kept, and what `on_output` gets to see."""
    keep: bool = True
    """False: output goes to `on_output` only."""


@dataclass
class Captured:
    """Head and tail of one stream, never more than `limit` plus TAIL_BYTES."""

    limit: int
    keep: bool = True
    head: bytearray = field(default_factory=bytearray)
    tail: bytes = b""
    passed: int = 0
    """Bytes within the limit, kept or not."""
    total: int = 0
    """Bytes the command produced."""

    @property
    def cut(self) -> int:
        """Bytes left out between head and tail."""
        return max(0, self.total - self.passed - len(self.tail))

    def add(self, data: bytes) -> bytes:
        """Count `data`, keep what fits; returns the part that was within the limit."""
        room = self.limit - self.passed
        fits, rest = data[:room], data[room:]
        self.total += len(data)
        self.passed += len(fits)
        if self.keep:
            self.head += fits
        if rest:
            self.tail = (self.tail + rest)[-TAIL_BYTES:]
        return fits


@dataclass(frozen=True)
class Exit:
    status: int
    """Exit code, or the negative number of the signal that ended it."""
    timed_out: bool
    stdout: Captured
    stderr: Captured


class ChannelLost(Exception):
    """The way into the container broke while a command ran: it may have had effects. The message
    says what was seen; `containers.py` asks the engine why."""

    def __init__(self, message: str, *, hung_up: bool = False) -> None:
        super().__init__(message)
        self.hung_up = hung_up
        """The other side ended it, so its container is probably dying."""


class CannotRun(Exception):
    """The container could not start the command (no such file, no process left, ...). It had no
    effects. `errno` is the executor's, 0 when unknown."""

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class Channel(Protocol):
    """Runs commands in one agent's container. One instance serves any number of them at once."""

    @property
    def kind(self) -> str:
        """`init` or `docker-exec`."""
        ...

    @property
    def alive(self) -> bool: ...

    async def run(self, command: Command, on_output: OnOutput | None = None) -> Exit:
        """Run to the end. Cancellation, an error of `on_output` or of stdin kills the command and
        everything it started before it is re-raised. Raises ChannelLost, CannotRun, TooLarge."""
        ...

    async def close(self) -> None: ...
