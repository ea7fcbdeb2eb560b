"""A fake executor: the container's end of the socket, played by the test with frames of its own making."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from services.sandbox.executor import ExecutorChannel

RUN, STDIN, KILL, RESET, PING, CREDIT, SIGNAL = range(1, 8)
STDOUT, STDERR, EXIT, ERROR, HELLO, PONG, STDIN_CREDIT, STDOUT_TAIL, STDERR_TAIL = range(16, 25)


@dataclass
class RunFrame:
    timeout_ms: int
    has_stdin: bool
    limit: int
    credit: int
    cwd: str
    argv: list[str]
    env: dict[str, str]


class FakeExecutor:
    """Speaks the executor's side; reads with a deadline, so that a missing frame fails the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, kind: int, job: int = 0, payload: bytes = b"") -> None:
        self.writer.write(struct.pack("<IBI", len(payload) + 5, kind, job) + payload)

    def hello(self, version: int = 1) -> None:
        self.send(HELLO, 0, struct.pack("<II", version, 1))

    def exit(self, job: int, status: int = 0, flags: int = 0, out: int = 0, err: int = 0) -> None:
        self.send(EXIT, job, struct.pack("<iBQQ", status, flags, out, err))

    def error(self, job: int, errno: int, text: str) -> None:
        self.send(ERROR, job, struct.pack("<i", errno) + text.encode())

    async def receive(self) -> tuple[int, int, bytes]:
        async with asyncio.timeout(5):
            length, kind, job = struct.unpack("<IBI", await self.reader.readexactly(9))
            return kind, job, await self.reader.readexactly(length - 5)

    async def expect(self, kind: int) -> tuple[int, bytes]:
        got, job, payload = await self.receive()
        assert got == kind, f"frame type {got}, expected {kind}"
        return job, payload

    async def run(self) -> tuple[int, RunFrame]:
        job, payload = await self.expect(RUN)
        return job, parse_run(payload)

    async def closed(self) -> bool:
        """The other side hung up (whatever it still sent)."""
        async with asyncio.timeout(5):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass
            return True

    def close(self) -> None:
        self.writer.transport.abort()


def parse_run(payload: bytes) -> RunFrame:
    timeout_ms, flags, limit, credit = struct.unpack_from("<IIQI", payload)
    cwd, _, rest = payload[20:].partition(b"\0")
    groups: list[list[str]] = []
    for _ in range(2):
        (count,) = struct.unpack_from("<H", rest)
        *texts, rest = rest[2:].split(b"\0", count)
        groups.append([text.decode() for text in texts])
    assert rest == b""
    env = dict(line.split("=", 1) for line in groups[1])
    return RunFrame(timeout_ms, bool(flags & 1), limit, credit, cwd.decode(), groups[0], env)


Test = Callable[[ExecutorChannel, FakeExecutor], Awaitable[None]]


@pytest.fixture
def with_executor() -> Callable[..., None]:
    """Runs a coroutine function with a connected channel and the fake behind it; fails on left-over tasks."""

    def run(test: Test, *, greet: bool = True, **options: Any) -> None:
        async def main() -> None:
            ours, theirs = socket.socketpair()
            for end in (ours, theirs):
                end.setblocking(False)
            loop = asyncio.get_running_loop()
            _, channel = await loop.connect_accepted_socket(lambda: ExecutorChannel(**options), ours)
            fake = FakeExecutor(*await asyncio.open_connection(sock=theirs))
            try:
                if greet:
                    fake.hello()
                    assert await channel.ready()
                async with asyncio.timeout(20):
                    await test(channel, fake)
            finally:
                await channel.close()
                fake.close()
                await asyncio.sleep(0)  # transports close in the next turn of the loop
            left = [t.get_name() for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            assert left == []

        asyncio.run(main())

    return run
