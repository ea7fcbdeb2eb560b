"""The fast channel: commands run by PID 1 of the container, spoken to in frames over a Unix socket.

The listener hands over a connection only after the kernel said that its peer is the container's
first process. What arrives is still hostile: bytes beyond the granted credit or limit, frames for
unknown jobs, a second HELLO or any malformed frame close the connection, fail this agent's jobs and
touch no other agent (`tests/unit/sandbox/test_executor.py`). Memory per job is bounded by WINDOW
plus what the caller asked to keep.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

from beige.bus.credit import Signal
from beige.errors import TooLarge
from services.sandbox import frames
from services.sandbox.channel import (
    MAX_ARGUMENT,
    CannotRun,
    Captured,
    ChannelLost,
    Command,
    Exit,
    OnOutput,
)
from services.sandbox.frames import Decoder, Event, Exited, Hello, JobError, Output, StdinCredit, Violation

WINDOW = 256 * 1024
"""Bytes of output in flight per job: the credit it starts with."""
GRACE_S = 10.0
"""How much later than a command's timeout its EXIT may come before the executor counts as stuck."""
KILL_WAIT_S = 2.0
"""How long a cancelled call waits for the EXIT that shows that nothing is left of it."""
STUCK_S = 10.0
"""After KILL without EXIT for so long the connection is closed, which kills everything."""
STDIN_CHUNK = 64 * 1024


class _Job:
    """One command: what arrived for it and was not taken yet, and what it may still send."""

    def __init__(self, number: int, limit_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self.left = {"stdout": limit_bytes, "stderr": limit_bytes}
        self.tails: set[str] = set()
        self.credit = WINDOW
        self.stdin_credit = frames.STDIN_WINDOW
        self.stdin_granted = asyncio.Event()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.abandoned = False
        self._arrived: deque[Event] = deque()
        self._error: BaseException | None = None
        self._changed = Signal()

    def put(self, event: Event) -> None:
        if not self.abandoned:
            self._arrived.append(event)
        if isinstance(event, Exited | JobError):
            self._end()
        self._changed.send()

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.send()

    def lose(self, reason: str, hung_up: bool) -> None:
        self.fail(ChannelLost(reason, hung_up=hung_up))
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        self.stdin_granted.set()

    def grant_stdin(self, count: int) -> None:
        self.stdin_credit += count
        if self.stdin_credit > frames.STDIN_WINDOW:
            raise Violation("more stdin credit than its window")
        self.stdin_granted.set()

    async def next(self) -> Event:
        """The next event; raises the job's error."""
        while True:
            if self._error is not None:
                raise self._error
            if self._arrived:
                return self._arrived.popleft()
            await self._changed.wait()

    def check_output(self, event: Output) -> None:
        """Violation if the container sends more than it was allowed to."""
        if event.tail:
            if event.stream in self.tails:
                raise Violation("a second tail")
            self.tails.add(event.stream)
            return
        size = len(event.data)
        self.credit -= size
        self.left[event.stream] -= size
        if self.credit < 0 or self.left[event.stream] < 0 or self.tails:
            raise Violation("output beyond the credit or the limit")


class ExecutorChannel(asyncio.Protocol):
    """One connection of one container's executor. Implements `channel.Channel`."""

    kind = "init"

    def __init__(
        self, *, grace_s: float = GRACE_S, kill_wait_s: float = KILL_WAIT_S, stuck_s: float = STUCK_S
    ) -> None:
        self._grace_s, self._kill_wait_s, self._stuck_s = grace_s, kill_wait_s, stuck_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = Decoder()
        self._jobs: dict[int, _Job] = {}
        self._last_job = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._greeted = False
        self._settled = asyncio.Event()
        self.lost = asyncio.Event()
        self.why_lost = ""

    @property
    def alive(self) -> bool:
        return self._greeted and not self.lost.is_set()

    @property
    def running(self) -> int:
        """Commands that have not ended."""
        return len(self._jobs)

    async def ready(self) -> bool:
        """Waits for HELLO or the end of the connection; False if it ended first."""
        await self._settled.wait()
        return self.alive

    async def close(self) -> None:
        self._break("closed by the sandbox service")

    # --- running a command ---------------------------------------------------------------------------

    async def run(self, command: Command, on_output: OnOutput | None = None) -> Exit:
        job = self._start(command)
        feeder = self._feed(job, command.stdin)
        overdue = self._loop.call_later(command.timeout_s + self._grace_s, self._overdue, job)
        try:
            return await self._collect(job, command, on_output)
        except BaseException:
            # Shielded waits inside: even a second cancellation leaves KILL sent and the watchdog set.
            await self._stop(job)
            raise
        finally:
            overdue.cancel()
            if feeder is not None:
                feeder.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await feeder

    def _start(self, command: Command) -> _Job:
        payload = _encode(command)
        if not self.alive:
            raise ChannelLost(self.why_lost or "the executor is not connected")
        self._last_job = self._last_job % 0xFFFFFFFF + 1
        job = _Job(self._last_job, command.limit_bytes, self._loop)
        self._jobs[job.number] = job
        self._write(frames.frame(frames.RUN, job.number, payload))
        return job

    async def _collect(self, job: _Job, command: Command, on_output: OnOutput | None) -> Exit:
        kept = {name: Captured(command.limit_bytes, command.keep) for name in ("stdout", "stderr")}
        taken = 0
        while True:
            event = await job.next()
            match event:
                case Output(tail=True):
                    kept[event.stream].tail = event.data
                case Output():
                    kept[event.stream].add(event.data)
                    if on_output is not None:
                        await on_output(event.stream, event.data)
                    taken = self._refill(job, taken + len(event.data))
                case Exited():
                    return _exit(event, kept["stdout"], kept["stderr"])
                case JobError():
                    raise CannotRun(event.text, event.errno)

    def _refill(self, job: _Job, taken: int) -> int:
        """Grants credit in halves of the window, so that the peer's smallest frames do not cost us
        a frame each."""
        if taken < WINDOW // 2:
            return taken
        job.credit += taken
        self._write(frames.credit(job.number, taken))
        return 0

    # --- stdin -----------------------------------------------------------------------------------------

    def _feed(self, job: _Job, stdin: bytes | AsyncIterator[bytes] | None) -> asyncio.Task[None] | None:
        if stdin is None:
            return None
        task = self._loop.create_task(self._send_stdin(job, stdin), name=f"stdin-{job.number}")
        task.add_done_callback(lambda done: _report(job, done))
        return task

    async def _send_stdin(self, job: _Job, stdin: bytes | AsyncIterator[bytes]) -> None:
        if isinstance(stdin, bytes):
            await self._send_chunk(job, stdin)
        else:
            async for chunk in stdin:
                await self._send_chunk(job, chunk)
        if not job.ended.done():
            self._write(frames.frame(frames.STDIN, job.number))

    async def _send_chunk(self, job: _Job, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view and not job.ended.done():
            await self._writable.wait()
            while job.stdin_credit == 0 and not job.ended.done():
                job.stdin_granted.clear()
                await job.stdin_granted.wait()
            size = min(len(view), job.stdin_credit, STDIN_CHUNK)
            job.stdin_credit -= size
            self._write(frames.frame(frames.STDIN, job.number, view[:size]))
            view = view[size:]

    # --- ending ------------------------------------------------------------------------------------------

    async def _stop(self, job: _Job) -> None:
        """Kill the command's tree; wait briefly for the proof that it is gone."""
        if job.ended.done():
            return
        job.abandoned = True
        self._write(frames.frame(frames.KILL, job.number))
        self._loop.call_later(self._stuck_s, self._give_up, job)
        await asyncio.wait([job.ended], timeout=self._kill_wait_s)

    def _give_up(self, job: _Job) -> None:
        if not job.ended.done():
            self._break("the executor did not kill a command")

    def _overdue(self, job: _Job) -> None:
        if not job.ended.done():
            self._break("the executor did not end the command at its deadline")

    def _break(self, reason: str) -> None:
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str, *, hung_up: bool = False) -> None:
        if self.lost.is_set():
            return
        self.why_lost = reason
        self.lost.set()
        self._settled.set()
        self._writable.set()
        for job in self._jobs.values():
            job.lose(reason, hung_up)
        self._jobs.clear()

    # --- the wire ----------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self.lost.is_set():
            self._transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=512 * 1024)

    def data_received(self, data: bytes) -> None:
        if self.lost.is_set():
            return
        try:
            for event in self._decoder.feed(data):
                self._take(event)
        except Violation as error:
            self._break(f"the executor broke the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the executor's connection ended", hung_up=True)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _take(self, event: Event) -> None:
        if isinstance(event, Hello):
            self._greet(event)
        elif not self._greeted:
            raise Violation("a frame before HELLO")
        else:
            self._deliver(event)

    def _greet(self, event: Hello) -> None:
        if self._greeted:
            raise Violation("a second HELLO")
        if event.version != frames.PROTOCOL:
            raise Violation(f"protocol version {event.version}, this service speaks {frames.PROTOCOL}")
        self._greeted = True
        self._settled.set()

    def _deliver(self, event: Event) -> None:
        job = self._jobs.get(getattr(event, "job", 0))
        if job is None or isinstance(event, frames.Pong | Hello):
            raise Violation("a frame for no running job")
        match event:
            case Output():
                job.check_output(event)
                job.put(event)
            case StdinCredit():
                job.grant_stdin(event.credit)
            case Exited() | JobError():
                del self._jobs[job.number]
                job.put(event)


def _report(job: _Job, feeder: asyncio.Task[None]) -> None:
    """What broke the source of stdin ends the job and reaches the caller of `run`."""
    if not feeder.cancelled() and (error := feeder.exception()) is not None:
        job.fail(error)


def _exit(event: Exited, stdout: Captured, stderr: Captured) -> Exit:
    # The totals are the container's word: they may only add to what was seen.
    stdout.total = max(event.stdout_total, stdout.passed + len(stdout.tail))
    stderr.total = max(event.stderr_total, stderr.passed + len(stderr.tail))
    return Exit(event.status, event.timed_out, stdout, stderr)


def _encode(command: Command) -> bytes:
    argv = [argument.encode() for argument in command.argv]
    if any(len(argument) > MAX_ARGUMENT for argument in argv):
        raise TooLarge(f"an argument is over {MAX_ARGUMENT} bytes: write it into a file first")
    try:
        payload = frames.run_payload(
            argv,
            {name.encode(): value.encode() for name, value in command.env.items()},
            command.cwd.encode(),
            timeout_ms=max(1, int(command.timeout_s * 1000)),
            has_stdin=command.stdin is not None,
            limit_bytes=command.limit_bytes,
            credit_bytes=WINDOW,
        )
    except ValueError as error:
        raise CannotRun(str(error)) from None
    if len(payload) > frames.MAX_PAYLOAD:
        raise TooLarge(f"command and environment are over {frames.MAX_PAYLOAD} bytes")
    return payload
