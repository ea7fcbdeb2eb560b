"""The plugin's end of its own process: loads it for the host at the other end of a socket pair.

The process holds this plugin's configuration and nothing else's. What the plugin prints goes to
pipes that the host reads; when the host is gone, so is this process.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, cast

import uvloop

from beige.errors import Malformed
from beige.pluginhost.frames import MAX_LOG, Close, Frame, FrameReader, Log, NotLoaded, encode
from beige.pluginhost.loader import LoadProblem

CLOSE_S = 2.0


class Worker(asyncio.Protocol):
    """Frames in, frames out. Each service's own overrides `take`, and `ending` if work is under way."""

    plugin: Any = None
    """What `create_plugin` returned."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reader: FrameReader[Any]) -> None:
        self.loop = loop
        self._reader = reader
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()

    # --- for the service ------------------------------------------------------------------------------

    def take(self, frame: Any) -> None:
        """A frame of the service's own came."""
        raise NotImplementedError

    async def ending(self) -> None:
        """The plugin is about to be closed."""

    def load(self, create: Callable[[], Any]) -> bool:
        """Set `plugin` to what `create` returns. False, and the host knows why, if it can't be used."""
        try:
            self.plugin = create()
        except LoadProblem as problem:
            if problem.__cause__ is not None:
                self.send(Log(logging.ERROR, trace(problem.__cause__)))
            self.send(NotLoaded(str(problem)[:400].encode(errors="replace").decode()))
            return False
        return True

    def send(self, frame: Frame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(frame))

    def log(self, level: int, text: str) -> None:
        """Callable from any thread."""
        clean = text.encode(errors="replace").decode()[:MAX_LOG]
        self.loop.call_soon_threadsafe(self.send, Log(level, clean))

    # --- the socket pair ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        os._exit(0)  # the host is gone: nobody wants an answer

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                if isinstance(frame, Close):
                    self._closing = self.loop.create_task(self._close())
                else:
                    self.take(frame)
        except Malformed:
            os._exit(3)

    async def _close(self) -> None:
        close = getattr(self.plugin, "close", None)
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.ending()
                done = close() if callable(close) else None
                if inspect.isawaitable(done):
                    await done
        except Exception as error:
            self.send(Log(logging.ERROR, trace(error)))
        self.closed.set()


class _ToHost(logging.Handler):
    """Carries the plugin's log records to the host."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        self._worker.log(record.levelno, self.format(record))


def trace(error: BaseException) -> str:
    """For the log: the end of the traceback."""
    text = "".join(traceback.format_exception(error))
    return text[-MAX_LOG:].encode(errors="replace").decode()


async def _serve(connection: socket.socket, make: Callable[[asyncio.AbstractEventLoop], Worker]) -> None:
    loop = asyncio.get_running_loop()
    worker = make(loop)
    logging.basicConfig(level=logging.INFO, handlers=[_ToHost(worker)], format="%(name)s: %(message)s")
    await loop.create_unix_connection(lambda: worker, sock=connection)
    await worker.closed.wait()


def _die_with_host() -> None:
    """The kernel kills this process when the host dies, even while a handler holds the GIL."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def serve(descriptor: int, host: int, make: Callable[[asyncio.AbstractEventLoop], Worker]) -> None:
    """Serve the host (process id `host`) on the inherited socket `descriptor`."""
    _die_with_host()
    if os.getppid() != host:
        os._exit(0)
    uvloop.run(_serve(socket.socket(fileno=descriptor), make))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that never end must not keep the process
