"""A plugin's tools and hooks in its own process: runs their handlers for the host."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from beige.pluginhost import worker
from beige.pluginhost.loader import Registrar, load_plugin
from beige.pluginhost.worker import trace
from beige.plugins import HookInvocation, PluginContext, ToolInvocation
from services.tools import answers, frames, results

THREADS = 32
"""`def` handlers running at once; more wait. As many of hooks: no tool takes their threads."""
STUCK_AFTER_S = 1.0


class Worker(worker.Worker):
    """Calls in, handlers run, results out."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, frames.plugin_reader())
        self._tool_pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tool")
        self._hook_pool = ThreadPoolExecutor(THREADS, thread_name_prefix="hook")
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._unended: set[asyncio.Task[None] | Future[Any]] = set()
        self._registered: Registrar | None = None
        self._load: frames.Load | None = None

    def take(self, frame: frames.ToPlugin) -> None:
        match frame:
            case frames.Call():
                self._start(frame.id, self._call(frame))
            case frames.Hook():
                self._start(frame.id, self._hook(frame))
            case frames.Cancel():
                self._cancel(frame.id)
            case frames.Load():
                self._load_plugin(frame)

    def _load_plugin(self, load: frames.Load) -> None:
        self._load = load
        ctx = PluginContext(load.name, Path(load.data_dir), logging.getLogger("plugin"))
        registrar = self._registered = Registrar(load.provides)
        if self.load(lambda: load_plugin(Path(load.directory), registrar, load.config, ctx)):
            self.send(frames.Loaded({name: tool.timeout_s for name, tool in registrar.tools.items()}))

    # --- calls ----------------------------------------------------------------------------------------

    def _start(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work, name=f"call-{number}")
        self._calls[number] = task
        task.add_done_callback(lambda _: self._calls.pop(number, None))

    async def _call(self, call: frames.Call) -> None:
        assert self._load is not None and self._registered is not None
        name = self._load.name
        try:
            config = self._load.agent_configs.get(call.agent, self._load.config)
            invocation = ToolInvocation(
                call.tool, tuple(call.args), call.agent, call.session, call.channel, call.cwd, config
            )
            handler = self._registered.tools[call.tool].handler
            result = results.from_value(name, await self._run(self._tool_pool, handler, invocation))
        except BaseException as error:  # SystemExit and a CancelledError of its own too
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            self.log(logging.ERROR, trace(error))
            result = results.from_exception(name, error)
        self.send(frames.Done(call.id, *result))

    async def _hook(self, call: frames.Hook) -> None:
        assert self._load is not None and self._registered is not None
        name = self._load.name
        try:
            config = self._load.agent_configs.get(call.agent, self._load.config)
            invocation = HookInvocation(
                call.hook, call.agent, call.session, call.channel, call.text, call.model, sender=call.sender,
                previous_model=call.previous_model, reason=call.reason, config=config,
            )  # fmt: skip
            value = await self._run(self._hook_pool, self._registered.hooks[call.hook], invocation)
            answer = answers.from_value(name, call.hook, value)
        except BaseException as error:
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            self.log(logging.ERROR, trace(error))
            answer = answers.from_exception(name, error)
        self.send(frames.Answered(call.id, *answer))

    async def _run(self, pool: ThreadPoolExecutor, handler: Callable[[Any], Any], invocation: Any) -> Any:
        if _is_async(handler):
            return await handler(invocation)
        future = pool.submit(_attempt, handler, invocation)
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
        self.loop.call_later(STUCK_AFTER_S, self._report_stuck)

    def _report_stuck(self) -> None:
        if self._unended:
            self.send(frames.Stuck(len(self._unended)))


def _is_async(handler: Callable[[Any], Any]) -> bool:
    call = type(handler).__call__
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _attempt(handler: Callable[[Any], Any], invocation: Any) -> tuple[Any, BaseException | None]:
    """In a thread. A raised StopIteration or SystemExit must not travel through asyncio's futures."""
    try:
        return handler(invocation), None
    except BaseException as error:
        return None, error


def main(descriptor: int, host: int) -> None:
    """Serve the host (process id `host`) on the inherited socket `descriptor`."""
    worker.serve(descriptor, host, Worker)
