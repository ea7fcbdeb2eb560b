"""The host's end of the executor's channel, for tests: listens, speaks frames, notes what comes."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

RUN, STDIN, KILL, RESET, PING, CREDIT, SIGNAL = range(1, 8)
STDOUT, STDERR, EXIT, ERROR, HELLO, PONG, STDIN_CREDIT, STDOUT_TAIL, STDERR_TAIL = range(16, 25)
PLENTY = 1 << 30


@dataclass
class Ended:
    """What became of a job."""

    status: int | None = None
    flags: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_total: int = 0
    stderr_total: int = 0
    stdout_tail: bytes = b""
    stderr_tail: bytes = b""
    error: int | None = None
    error_text: str = ""
    order: list[int] = field(default_factory=list)
    """Types of the job's frames as they came."""


class Box:
    """Host side: listens, lets one executor dial in, speaks frames."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[tuple[int, int, bytes]] = []
        self._bytes = b""
        self._connection: socket.socket | None = None
        self.listen()
        self.process: subprocess.Popen[bytes] | None = None

    def listen(self) -> None:
        self.path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen(8)
        self.listener.settimeout(10)

    def accept(self) -> tuple[int, int]:
        """Takes the next connection; the version and pid of its HELLO."""
        self.hang_up()
        self._connection, _ = self.listener.accept()
        self._connection.settimeout(20)
        self._bytes, self._waiting = b"", []
        kind, job, payload = self.frame()
        assert (kind, job) == (HELLO, 0)
        version, pid = struct.unpack("<II", payload)
        return version, pid

    def hang_up(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    def send_bytes(self, raw: bytes) -> None:
        assert self._connection
        self._connection.sendall(raw)

    def send(self, kind: int, job: int, payload: bytes = b"") -> None:
        self.send_bytes(frame(kind, job, payload))

    def frame(self) -> tuple[int, int, bytes]:
        """The next frame. EOFError when the executor has hung up."""
        assert self._connection
        while len(self._bytes) < 4 or len(self._bytes) < 4 + struct.unpack_from("<I", self._bytes)[0]:
            try:
                received = self._connection.recv(1 << 20)
            except ConnectionResetError:
                received = b""
            if not received:
                raise EOFError
            self._bytes += received
        (length,) = struct.unpack_from("<I", self._bytes)
        raw, self._bytes = self._bytes[4 : 4 + length], self._bytes[4 + length :]
        kind, job = struct.unpack_from("<BI", raw)
        return kind, job, raw[5:]

    def frame_for(self, job: int) -> tuple[int, bytes]:
        """The job's next frame; those of other jobs wait for their turn."""
        for i, (kind, owner, payload) in enumerate(self._waiting):
            if owner == job:
                del self._waiting[i]
                return kind, payload
        while True:
            kind, owner, payload = self.frame()
            if owner == job:
                return kind, payload
            self._waiting.append((kind, owner, payload))

    def is_quiet(self, seconds: float) -> bool:
        """Nothing arrives for so long."""
        assert self._connection
        if self._waiting or self._bytes:
            return False
        self._connection.settimeout(seconds)
        try:
            self._bytes = self._connection.recv(1 << 20)
            return False
        except TimeoutError:
            return True
        finally:
            self._connection.settimeout(20)

    def start(
        self,
        job: int,
        *argv: str | bytes,
        timeout_ms: int = 0,
        stdin: bool = False,
        limit: int = PLENTY,
        credit: int = PLENTY,
        cwd: bytes = b"/",
        env: dict[str, str] | None = None,
    ) -> None:
        self.send(RUN, job, run_payload(*argv, timeout_ms=timeout_ms, stdin=stdin, limit=limit,
                                        credit=credit, cwd=cwd, env=env))  # fmt: skip

    def wait(self, job: int) -> Ended:
        ended = Ended()
        while ended.status is None and ended.error is None:
            kind, payload = self.frame_for(job)
            ended.order.append(kind)
            note(ended, kind, payload)
        return ended

    def run(self, job: int, *argv: str | bytes, **options: object) -> Ended:
        self.start(job, *argv, **options)  # type: ignore[arg-type]
        return self.wait(job)

    def sh(self, job: int, script: str, **options: object) -> Ended:
        return self.run(job, "sh", "-c", script, **options)

    def reset(self) -> None:
        """Everything in the box is dead when this returns."""
        self.send(RESET, 0xFFFFFFFF)
        assert self.frame_for(0xFFFFFFFF) == (PONG, b"")

    def assert_hung_up(self) -> None:
        """The executor has closed this connection, and dials again."""
        with pytest.raises(EOFError):
            while True:
                self.frame()
        self.accept()

    def close(self) -> None:
        self.hang_up()
        self.listener.close()
        if self.process:
            init = self.init_pid()
            is_pid_1 = init != self.process.pid
            os.kill(init, signal.SIGKILL if is_pid_1 else signal.SIGTERM)  # PID 1 obeys nothing less
            status = self.process.wait(20)
            assert is_pid_1 or status == 0

    def init_pid(self) -> int:
        """The executor's pid on this machine. `unshare` is its parent."""
        assert self.process
        pid = self.process.pid
        if Path(f"/proc/{pid}/comm").read_text().strip() != "unshare":
            return pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def run_payload(
    *argv: str | bytes,
    timeout_ms: int = 0,
    stdin: bool = False,
    limit: int = PLENTY,
    credit: int = PLENTY,
    cwd: bytes = b"/",
    env: dict[str, str] | None = None,
) -> bytes:
    variables = {"PATH": "/usr/bin:/bin"} if env is None else env
    head = struct.pack("<IIQI", timeout_ms, int(stdin), limit, credit)
    return head + cwd + b"\0" + texts(list(argv)) + texts([f"{k}={v}" for k, v in variables.items()])


def frame(kind: int, job: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IBI", 5 + len(payload), kind, job) + payload


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def texts(items: list[str] | list[str | bytes]) -> bytes:
    encoded = [item if isinstance(item, bytes) else item.encode() for item in items]
    return struct.pack("<H", len(encoded)) + b"".join(item + b"\0" for item in encoded)


def note(ended: Ended, kind: int, payload: bytes) -> None:
    if kind == STDOUT:
        ended.stdout += payload
    elif kind == STDERR:
        ended.stderr += payload
    elif kind == STDOUT_TAIL:
        ended.stdout_tail = payload
    elif kind == STDERR_TAIL:
        ended.stderr_tail = payload
    elif kind == EXIT:
        ended.status, ended.flags, ended.stdout_total, ended.stderr_total = struct.unpack("<iBQQ", payload)
    elif kind == ERROR:
        (ended.error,) = struct.unpack_from("<i", payload)
        ended.error_text = payload[4:].decode()
    else:
        assert kind == STDIN_CREDIT, kind


def processes_with(marker: str) -> list[int]:
    """Pids, as this machine sees them, of living processes whose command line holds `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def eventually(condition: Callable[[], object], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
