"""Carries one connection's bytes both ways, with the credit of the bus, until one side ends it.

The agent's bytes are held back until its TLS has said which server it wants (`hello`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from beige.destinations import Destination
from beige.errors import BeigeError, Denied, Failed, TooLarge
from beige.messages.egress import ConnectResult
from beige.wire import Outcome
from services.egress.dialer import Link
from services.egress.hello import Hello

CHUNK = 32 * 1024


@dataclass(frozen=True)
class Limits:
    idle_s: float = 300.0
    """Without a byte in either direction."""
    hello_s: float = 20.0
    """Until a tunnel to port 443 has sent its ClientHello."""
    duration_s: float = 3600.0
    """From its first byte on."""
    bytes: int = 4 * 1024**3
    """Both ways together."""


class ConnectCall(Protocol):
    """`beige.bus.Request`, as far as it is used here."""

    outcome: Outcome

    async def send(self, item: bytes) -> None: ...
    def items(self) -> AsyncIterator[bytes]: ...


class Flow:
    def __init__(self, call: ConnectCall, link: Link, hello: Hello | None, limits: Limits) -> None:
        self._call, self._link, self._hello, self._limits = call, link, hello, limits
        self._sent = self._received = 0
        self._held = b""
        self._moved, self._spoken = asyncio.Event(), asyncio.Event()

    async def run(self) -> ConnectResult:
        """Until the other side has ended. An error after the beginning is in the outcome, and raised."""
        try:
            await self._until_over()
        except BeigeError as error:
            self._call.outcome.error = str(error)[:256]
            raise
        except OSError as error:
            # The other side is gone: an end like another, and how much came is known.
            self._call.outcome.error = (error.strerror or "the connection broke")[:256]
        finally:
            self._call.outcome.input_bytes = self._sent
            self._call.outcome.output_bytes = self._received
            self._link.writer.transport.abort()
        return ConnectResult(self._sent, self._received)

    async def _until_over(self) -> None:
        """The end of what comes in is the end. Of what goes out it is only after a plain request, whose
        sender knows when the answer is complete."""
        down, up = _task(self._down(), "egress down"), _task(self._up(), "egress up")
        last = {down} if self._hello is not None else {down, up}
        running = {down, up, _task(self._watch(), "egress clock")}
        try:
            while not any(task.done() for task in last):
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _down(self) -> None:
        while data := await self._link.reader.read(CHUNK):
            self._received += len(data)
            self._note()
            await self._call.send(data)

    async def _up(self) -> None:
        async for data in self._call.items():
            self._note()
            if passed := self._judged(data):
                await self._write(passed)
        if self._link.writer.can_write_eof():
            self._link.writer.write_eof()

    def _judged(self, data: bytes) -> bytes:
        """What may go out now. Denied if the TLS asks for another server than policy was asked about."""
        if self._hello is None or self._hello.done:
            return data
        self._held += data
        self._hello.feed(data)
        if not self._hello.done:
            return b""
        if self._hello.wrong:
            raise Denied(f"not what was asked for: {self._hello.wrong}")
        self._spoken.set()
        held, self._held = self._held, b""
        return held

    async def _write(self, data: bytes) -> None:
        self._sent += len(data)
        self._link.writer.write(data)
        await self._link.writer.drain()

    def _note(self) -> None:
        self._moved.set()
        if self._sent + self._received > self._limits.bytes:
            raise TooLarge(f"the connection has carried more than {self._limits.bytes} bytes")

    async def _watch(self) -> None:
        try:
            async with asyncio.timeout(self._limits.duration_s):
                await self._silence()
        except TimeoutError:
            raise Failed(f"the connection has lasted {self._limits.duration_s:g} s") from None

    async def _silence(self) -> None:
        if self._hello is not None and self._hello.required:
            await self._in_time(self._spoken, self._limits.hello_s, "no TLS was spoken")
        while True:
            self._moved.clear()
            await self._in_time(self._moved, self._limits.idle_s, "the connection was idle")

    async def _in_time(self, event: asyncio.Event, limit_s: float, otherwise: str) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await event.wait()
        except TimeoutError:
            raise Failed(f"{otherwise} for {limit_s:g} s") from None


def _task(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work, name=name)


def hello_of(wanted: Destination, scheme: str) -> Hello | None:
    """Plain requests have none: the bridge has compared their Host header."""
    return Hello(wanted.host, wanted.port) if scheme == "connect" else None
