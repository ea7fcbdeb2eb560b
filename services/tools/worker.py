"""One plugin's own process: runs its handlers for the host at the other end of a socket pair.

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
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import uvloop

from beige.errors import Malformed
from beige.plugins import PluginContext, ToolHandler, ToolInvocation
from services.tools import frames, results
from services.tools.loader import LoadProblem, Tool, load_plugin

THREADS = 32
"""`def` handlers running at once; more wait."""
STUCK_AFTER_S = 1.0
CLOSE_S = 2.0


class Worker(asyncio.Protocol):
    """Frames in, handlers run, frames out."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader = frames.plugin_reader()
        self._transport: asyncio.Transport | None = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tool")
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._unended: set[asyncio.Task[None] | Future[Any]] = set()
        self._tools: dict[str, Tool] = {}
        self._plugin: Any = None
        self._load: frames.Load | None = None
        self.closed = asyncio.Event()

    # --- the socket pair ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        os._exit(0)  # the host is gone: nobody wants an answer

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._handle(frame)
        except Malformed:
            os._exit(3)

    def send(self, frame: frames.FromPlugin) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frames.encode(frame))

    def log(self, level: int, text: str) -> None:
        """Callable from any thread."""
        clean = text.encode(errors="replace").decode()[: frames.MAX_LOG]
        self._loop.call_soon_threadsafe(self.send, frames.Log(level, clean))

    def _handle(self, frame: frames.ToPlugin) -> None:
        match frame:
            case frames.Call():
                task = self._loop.create_task(self._call(frame), name=f"call-{frame.id}")
                self._calls[frame.id] = task
                task.add_done_callback(lambda _: self._calls.pop(frame.id, None))
            case frames.Cancel():
                self._cancel(frame.id)
            case frames.Load():
                self._load_plugin(frame)
            case frames.Close():
                self._closing = self._loop.create_task(self._close())

    # --- life -----------------------------------------------------------------------------------------

    def _load_plugin(self, load: frames.Load) -> None:
        self._load = load
        log = logging.getLogger("plugin")
        ctx = PluginContext(load.name, Path(load.data_dir), log)
        try:
            self._plugin, self._tools = load_plugin(Path(load.directory), load.tools, load.config, ctx)
        except LoadProblem as problem:
            if problem.__cause__ is not None:
                self.send(frames.Log(logging.ERROR, _trace(problem.__cause__)))
            self.send(frames.NotLoaded(str(problem)[:400].encode(errors="replace").decode()))
        else:
            self.send(frames.Loaded({name: tool.timeout_s for name, tool in self._tools.items()}))

    async def _close(self) -> None:
        close = getattr(self._plugin, "close", None)
        try:
            async with asyncio.timeout(CLOSE_S):
                done = close() if callable(close) else None
                if inspect.isawaitable(done):
                    await done
        except Exception as error:
            self.send(frames.Log(logging.ERROR, _trace(error)))
        self.closed.set()

    # --- calls ----------------------------------------------------------------------------------------

    async def _call(self, call: frames.Call) -> None:
        assert self._load is not None
        name = self._load.name
        try:
            config = self._load.agent_configs.get(call.agent, self._load.config)
            invocation = ToolInvocation(
                call.tool, tuple(call.args), call.agent, call.session, call.channel, call.cwd, config
            )
            result = results.from_value(name, await self._run(self._tools[call.tool].handler, invocation))
        except BaseException as error:  # SystemExit and a CancelledError of its own too
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            self.log(logging.ERROR, _trace(error))
            result = results.from_exception(name, error)
        self.send(frames.Done(call.id, *result))

    async def _run(self, handler: ToolHandler, invocation: ToolInvocation) -> Any:
        if _is_async(handler):
            return await handler(invocation)  # type: ignore[misc]
        future = self._pool.submit(_attempt, handler, invocation)
        try:
            value, error = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.done():
                self._unended.add(future)
                future.add_done_callback(self._unended.discard)
            raise
        if error is not None:
            raise error
        return await value if inspect.isawaitable(value) else value

    def _cancel(self, number: int) -> None:
        self.send(frames.CancelSeen(number))
        task = self._calls.get(number)
        if task is None:
            return
        self._unended.add(task)
        task.add_done_callback(self._unended.discard)
        task.cancel()
        self._loop.call_later(STUCK_AFTER_S, self._report_stuck)

    def _report_stuck(self) -> None:
        if self._unended:
            self.send(frames.Stuck(len(self._unended)))


class _ToHost(logging.Handler):
    """Carries the plugin's log records to the host."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        self._worker.log(record.levelno, self.format(record))


def _is_async(handler: ToolHandler) -> bool:
    call = type(handler).__call__
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _attempt(handler: ToolHandler, invocation: ToolInvocation) -> tuple[Any, BaseException | None]:
    """In a thread. A raised StopIteration or SystemExit must not travel through asyncio's futures."""
    try:
        return handler(invocation), None
    except BaseException as error:
        return None, error


def _trace(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    return text[-frames.MAX_LOG :].encode(errors="replace").decode()


async def _serve(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    worker = Worker(loop)
    logging.basicConfig(level=logging.INFO, handlers=[_ToHost(worker)], format="%(name)s: %(message)s")
    await loop.create_unix_connection(lambda: worker, sock=connection)
    await worker.closed.wait()


def _die_with_host() -> None:
    """The kernel kills this process when the host dies, even while a handler holds the GIL."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(descriptor: int, host: int) -> None:
    """Serve the host (process id `host`) on the inherited socket `descriptor`."""
    _die_with_host()
    if os.getppid() != host:
        os._exit(0)
    uvloop.run(_serve(socket.socket(fileno=descriptor)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that never end must not keep the process
