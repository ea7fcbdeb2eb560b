"""One life of a plugin's process, as its host sees it: starts it, carries frames, reads its pipes, kills it.

Touches processes, a socket pair and pipes; decides nothing about restarting (`life`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import beige
from beige.errors import Malformed
from beige.pluginhost.frames import Close, Frame, FrameReader, Log, NotLoaded, encode
from beige.pluginhost.prints import Prints, Throttle

LOAD_S = 30.0
CLOSE_S = 4.0
FLOOD_PAUSE_S = 0.02

_ENVIRONMENT = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "no_proxy",
})  # fmt: skip
_START = (
    "import importlib, sys; sys.path.append(sys.argv[1]); "
    "importlib.import_module(sys.argv[4]).main(int(sys.argv[2]), int(sys.argv[3]))"
)


def plugin_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of our environment a plugin gets. The host's own holds every plugin's secrets
    (`tests/unit/tools/test_plugin_process.py::test_a_plugin_sees_no_other_plugins_secrets`)."""
    return {key: value for key, value in environ.items() if key in _ENVIRONMENT or key.startswith("LC_")}


class Child(asyncio.Protocol):
    """From `start` to `kill`. Each service's own overrides `take`, and `lost` if something waits for it."""

    worker = ""
    """The module whose `main(descriptor, host)` is the plugin's end."""

    def __init__(self, log: logging.Logger, reader: FrameReader[Any], on_end: Callable[[], None]) -> None:
        """`on_end` is called once, as soon as nothing can be answered any more."""
        self._on_end = on_end
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._throttle = Throttle()
        self._load_answer: asyncio.Future[str] = self._loop.create_future()
        self._end: asyncio.Future[str] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        self._prints = _PrintReader(self._throttle, self._write_log)

    # --- for the service ------------------------------------------------------------------------------

    def take(self, frame: Any) -> None:
        """A frame of the service's own came. Malformed: one that makes no sense ends the process."""
        raise NotImplementedError

    def lost(self) -> None:
        """The process is gone, or as good as: whatever waits for it must learn of it."""

    def loaded(self) -> None:
        """The plugin said that it is loaded."""
        self._answer_load("")

    def send(self, frame: Frame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(frame))

    def finish(self, reason: str) -> None:
        """The end of this life, for `reason`; empty: it ends by itself."""
        if self._end.done():
            return
        self._end.set_result(reason)
        self._on_end()
        self.lost()
        if self._transport is not None:
            self._transport.abort()

    # --- life -----------------------------------------------------------------------------------------

    async def start(self, load: Frame, directory: str) -> str:
        """Start the process in `directory` and load the plugin: empty, or the reason why it is not
        loaded. OSError if no process can be started."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as on_error:
            on_error.enter_context(ours)
            ours.setblocking(False)
            pipe = await _open_pipe(self._prints)
            try:
                self._process = await _spawn(self.worker, theirs, pipe, directory)
            finally:
                os.close(pipe)
            await self._loop.create_unix_connection(lambda: self, sock=ours)
            on_error.pop_all()
        self.send(load)
        await asyncio.wait({self._load_answer, self._end}, timeout=LOAD_S, return_when="FIRST_COMPLETED")
        if self._load_answer.done():
            return self._load_answer.result()
        return "" if self._end.done() else f"it did not load within {LOAD_S:g} s"

    async def ended(self) -> str:
        """Waits for the end of the process, however it comes; why, if it isn't just an exit."""
        return await asyncio.shield(self._end)

    @property
    def is_over(self) -> bool:
        return self._end.done()

    @property
    def was_loaded(self) -> bool:
        """Also of a process that ended right after."""
        return self._load_answer.done() and not self._load_answer.result()

    async def close(self) -> None:
        """Let the plugin close itself."""
        self.send(Close())
        await asyncio.wait({self._end}, timeout=CLOSE_S)

    async def kill(self) -> str:
        """End the process and all of its session, resolve what waited for it; how it ended. May be
        called again after it was cancelled."""
        self.finish("")
        if self._process is None:
            self._prints.close()
            return "it could not be started"
        if not self._killed:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        status = await self._process.wait()
        self._prints.close()
        reason = self._end.result()
        return reason or (f"it exited with status {status}" if status >= 0 else f"signal {-status} ended it")

    # --- the socket -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish("")

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._handle(frame)
        except Malformed as error:
            self.finish(f"it broke the protocol: {error}")

    def _handle(self, frame: Any) -> None:
        match frame:
            case NotLoaded():
                self._answer_load(frame.reason)
            case Log():
                if self._throttle.allow(self._loop.time()):
                    self._write_log(min(max(frame.level, logging.DEBUG), logging.CRITICAL), frame.text)
            case _:
                self.take(frame)

    def _answer_load(self, problem: str) -> None:
        if not self._load_answer.done():
            self._load_answer.set_result(problem)

    def _write_log(self, level: int, text: str) -> None:
        dropped = self._throttle.take_dropped()
        self._log.log(level, "%s", text, extra={"lines_dropped": dropped} if dropped else None)


class _PrintReader(asyncio.Protocol):
    """Reads what the process prints. One that prints too much is slowed down, not we."""

    def __init__(self, throttle: Throttle, write: Callable[[int, str], None]) -> None:
        self._throttle, self._write = throttle, write
        self._lines = Prints(throttle)
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        for line in self._lines.feed(data, loop.time()):
            self._write(logging.INFO, line)
        if self._throttle.dropped and self._transport is not None:
            self._transport.pause_reading()
            loop.call_later(FLOOD_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        for line in self._lines.end():
            self._write(logging.INFO, line)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def _open_pipe(reader: _PrintReader) -> int:
    """A pipe read by `reader`; its other end, which the caller closes."""
    ours, theirs = os.pipe()
    try:
        await asyncio.get_running_loop().connect_read_pipe(lambda: reader, os.fdopen(ours, "rb", 0))
    except BaseException:
        os.close(theirs)
        raise
    return theirs


async def _spawn(
    worker: str, connection: socket.socket, prints: int, directory: str
) -> asyncio.subprocess.Process:
    root = str(Path(beige.__file__).parent.parent)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-B", "-u", "-c", _START, root,
        str(connection.fileno()), str(os.getpid()), worker,
        pass_fds=[connection.fileno()], cwd=directory, env=plugin_environment(os.environ),
        stdin=asyncio.subprocess.DEVNULL, stdout=prints, stderr=prints, start_new_session=True,
    )  # fmt: skip
