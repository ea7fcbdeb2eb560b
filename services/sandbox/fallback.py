"""The slow channel: `docker exec`, for images without our executor. Same interface, weaker promises.

Docker has no way to kill what it exec'ed, so each command carries a mark in its environment and is
killed from inside, with everything that inherited the mark. A process that cleared its environment
escapes that; the container's limits still hold it, and removing the container ends it.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

from beige.errors import TooLarge
from services.sandbox.channel import (
    MAX_ARGUMENT,
    CannotRun,
    Captured,
    ChannelLost,
    Command,
    Exit,
    OnOutput,
)
from services.sandbox.engine import Engine, OpenExec
from services.sandbox.failure import EngineError, Kind, classify, last_line
from services.sandbox.spec import SYSTEM_PATH, USER

CHUNK = 64 * 1024
IDLE_S = 1.0
"""No output for so long: look whether the command ended and only its children hold the pipe."""
KILL_S = 10.0
REFUSED = 126
"""Exit code of an exec that the runtime could not start."""
MARK = "BEIGE_JOB"
_HEADER = struct.Struct(">BxxxL")
_Ended = Callable[[str], Awaitable[bool]]
_STREAMS = {1: "stdout", 2: "stderr"}

# Twice, since a process may fork while the first pass runs.
_KILL = """
for pass in 1 2; do
  for p in /proc/[0-9]*; do
    if tr '\\0' '\\n' <"$p/environ" 2>/dev/null | grep -qx "BEIGE_JOB=$1"; then kill -9 "${p#/proc/}"; fi
  done
done
"""


class DockerExecChannel:
    """Commands for one container. Alive until the engine says that the container is not."""

    kind = "docker-exec"

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine, self._container = engine, container
        self._killers: set[asyncio.Task[None]] = set()
        self._alive = True

    @property
    def alive(self) -> bool:
        return self._alive

    async def close(self) -> None:
        self._alive = False
        for killer in tuple(self._killers):
            killer.cancel()
        await asyncio.gather(*self._killers, return_exceptions=True)

    async def run(self, command: Command, on_output: OnOutput | None = None) -> Exit:
        if any(len(argument.encode()) > MAX_ARGUMENT for argument in command.argv):
            raise TooLarge(f"an argument is over {MAX_ARGUMENT} bytes: write it into a file first")
        if any("\0" in text for text in (*command.argv, *command.env.values(), command.cwd)):
            raise CannotRun("a NUL byte in the command, its environment or directory")
        job = secrets.token_hex(8)
        opened = await self._open(command, job)
        reader, writer = await asyncio.open_connection(sock=opened.connection, limit=4 * CHUNK)
        run = _Run(command, opened, reader, writer, on_output)
        try:
            return await self._to_the_end(run, job)
        except BaseException:
            self._kill_later(job)
            raise
        finally:
            writer.transport.abort()

    async def _to_the_end(self, run: _Run, job: str) -> Exit:
        timed_out = False
        try:
            async with asyncio.timeout(run.command.timeout_s):
                await run.pump(self._ended)
        except TimeoutError:
            timed_out = True
            await self._kill(job)
        code = await self._exit_code(run.opened.id)
        said = bytes(run.kept["stdout"].head).decode("utf-8", "replace")
        if code == REFUSED and said.startswith("OCI runtime exec failed"):
            raise _refused(said)
        return Exit(code if code is not None else -9, timed_out, run.kept["stdout"], run.kept["stderr"])

    async def _open(self, command: Command, job: str) -> OpenExec:
        opening = asyncio.ensure_future(
            self._engine.open_exec(
                self._container,
                command.argv,
                {**command.env, MARK: job},
                command.cwd,
                USER,
                command.stdin is not None,
            )
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_late)
            self._kill_later(job)
            raise
        except EngineError as error:
            self._raise(error)

    def _raise(self, error: EngineError) -> NoReturn:
        """The engine's error, as the interface says it."""
        if error.kind is Kind.COMMAND_MISSING:
            raise CannotRun(last_line(error.text), errno.ENOENT) from error
        if error.kind in (Kind.NOT_RUNNING, Kind.CONTAINER_MISSING):
            self._alive = False
            raise ChannelLost("the container is not running", hung_up=True) from error
        raise error

    async def _ended(self, exec_id: str) -> bool:
        return await self._exit_code(exec_id) is not None

    async def _exit_code(self, exec_id: str) -> int | None:
        try:
            return await self._engine.exec_exit_code(exec_id)
        except EngineError as error:
            self._raise(error)

    def _kill_later(self, job: str) -> None:
        """The caller is gone or failing: what it started is killed even if nobody waits for it."""
        killer = asyncio.get_running_loop().create_task(self._kill(job), name=f"kill-{job}")
        self._killers.add(killer)
        killer.add_done_callback(self._killers.discard)

    async def _kill(self, job: str) -> None:
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(KILL_S):
                argv = ("/bin/sh", "-c", _KILL, "sh", job)
                environment = {"PATH": SYSTEM_PATH}
                opened = await self._engine.open_exec(self._container, argv, environment, "/", USER, False)
                reader, writer = await asyncio.open_connection(sock=opened.connection)
                while await reader.read(CHUNK):
                    pass
                writer.transport.abort()


class _Run:
    """One command's connection: output demultiplexed, stdin fed."""

    def __init__(
        self,
        command: Command,
        opened: OpenExec,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_output: OnOutput | None,
    ) -> None:
        self.command, self.opened = command, opened
        self.kept = {name: Captured(command.limit_bytes, command.keep) for name in ("stdout", "stderr")}
        self._reader, self._writer, self._on_output = reader, writer, on_output
        self._early = opened.early
        self._feeder: asyncio.Task[None]

    async def pump(self, ended: _Ended) -> None:
        """Until the command's output ends, or it ended and its children keep the pipe open."""
        self._feeder = feeder = asyncio.create_task(self._feed(self.command.stdin), name="stdin")
        try:
            while (header := await self._read_exactly(8, ended)) is not None:
                kind, left = _HEADER.unpack(header)
                while left:
                    data = await self._read(min(left, CHUNK))
                    if not data:
                        return
                    left -= len(data)
                    await self._take(_STREAMS.get(kind, "stdout"), data)
                self._check_stdin()
            self._check_stdin()
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)

    def _check_stdin(self) -> None:
        """An error of the source of stdin ends the command."""
        if self._feeder.done() and (error := self._feeder.exception()) is not None:
            raise error

    async def _take(self, stream: str, data: bytes) -> None:
        fits = self.kept[stream].add(data)
        if fits and self._on_output is not None:
            await self._on_output(stream, fits)

    async def _read_exactly(self, size: int, ended: _Ended) -> bytes | None:
        data, over = b"", False
        while len(data) < size:
            try:
                async with asyncio.timeout(IDLE_S):
                    more = await self._read(size - len(data))
            except TimeoutError:
                self._check_stdin()
                if over:
                    return None
                # Once more: the engine knows of the end before its last output is here.
                over = await ended(self.opened.id)
                continue
            if not more:
                return None
            data += more
        return data

    async def _read(self, most: int) -> bytes:
        if self._early:
            data, self._early = self._early[:most], self._early[most:]
            return data
        try:
            return await self._reader.read(most)
        except ConnectionError as error:
            raise ChannelLost(f"the engine closed the connection: {error}") from error

    async def _feed(self, stdin: bytes | AsyncIterator[bytes] | None) -> None:
        if stdin is None:
            return
        with suppress(ConnectionError):
            if isinstance(stdin, bytes):
                self._writer.write(stdin)
            else:
                async for chunk in stdin:
                    self._writer.write(chunk)
                    await self._writer.drain()
            await self._writer.drain()
            self._writer.write_eof()


def _refused(said: str) -> CannotRun:
    """The runtime's reason comes as output. (A command that prints the same deceives only its agent.)"""
    if "chdir to cwd" in said or "initial working directory" in said:  # runc, gVisor
        return CannotRun("chdir: no such directory", errno.ENOENT)
    if classify(400, said) is Kind.COMMAND_MISSING:
        return CannotRun("exec: no such program", errno.ENOENT)
    return CannotRun(last_line(said))


def _close_late(opening: asyncio.Future[OpenExec]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().connection.close()
