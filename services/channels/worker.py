"""A channel in its own process: runs its adapter, and carries what it asks for to the host."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from beige.errors import Malformed, from_wire
from beige.messages.llm import PromptResult
from beige.messages.session_settings import Name, SessionSettings, SettingsReply
from beige.pluginhost import worker
from beige.pluginhost.frames import Log
from beige.pluginhost.loader import Registrar, load_plugin, type_name
from beige.pluginhost.worker import trace
from beige.plugins import PluginContext
from beige.plugins.channels import ConversationStatus, OnEvent, is_conversation
from services.channels import frames

ASKS = 128
"""Open at once; more wait here."""


class Worker(worker.Worker):
    """The host's end is `link.Link`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, frames.plugin_reader())
        self._inboxes: dict[int, asyncio.Queue[frames.Event | frames.Reply | frames.Refused]] = {}
        self._numbers = itertools.count(1)
        self._slots = asyncio.Semaphore(ASKS)
        self._running: asyncio.Task[None] | None = None

    def take(self, frame: frames.ToPlugin) -> None:
        match frame:
            case frames.Load():
                self._load_plugin(frame)
            case frames.Event() | frames.Reply() | frames.Refused():
                if (inbox := self._inboxes.get(frame.id)) is not None:
                    inbox.put_nowait(frame)

    def _load_plugin(self, load: frames.Load) -> None:
        registrar = Registrar(load.provides)
        ctx = PluginContext(load.name, Path(load.data_dir), logging.getLogger("plugin"))
        if self.load(lambda: load_plugin(Path(load.directory), registrar, load.config, ctx)):
            self.send(frames.Loaded())
            context = Context(self, load, ctx.log)
            self._running = self.loop.create_task(
                self._run(registrar.channels[load.adapter], context), name=f"channel {load.channel}"
            )

    async def _run(self, adapter: Any, context: Context) -> None:
        """Until it is over; then this process is, and the host starts another."""
        reason = "its run() returned"
        try:
            await adapter.run(context)
        except BaseException as error:  # SystemExit, and a CancelledError of its own too
            if (task := asyncio.current_task()) and task.cancelling():
                return
            reason = f"its run() raised {type_name(error)}"
            self.send(Log(logging.ERROR, trace(error)))
        self.send(frames.Ended(reason))
        self.loop.call_soon(self.closed.set)

    async def ending(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def ask(
        self, make: type[Any], conversation: str, *fields: Any, on_event: OnEvent | None = None
    ) -> Any:
        """The reply to one ask. Its events come first, one after the other."""
        if not is_conversation(conversation):
            raise Malformed(f"conversation: {conversation[:80]!r} is no name of one (docs/channels.md)")
        async with self._slots:
            number = next(self._numbers)
            frame = make(number, conversation, *fields)
            inbox = self._inboxes[number] = asyncio.Queue()
            try:
                self.send(frame)
                return await self._answered(make, inbox, on_event)
            except BaseException:
                self.send(frames.Abandon(number))
                raise
            finally:
                del self._inboxes[number]

    async def _answered(self, make: type[Any], inbox: asyncio.Queue[Any], on_event: OnEvent | None) -> Any:
        while True:
            match await inbox.get():
                case frames.Event(number, event):
                    done = on_event(event) if on_event is not None else None
                    if done is not None:
                        await done
                    self.send(frames.Took(number))
                case frames.Reply(_, body):
                    return msgspec.msgpack.decode(body, type=frames.REPLIES[make])
                case frames.Refused(_, code, message, executed):
                    raise from_wire(code, message, "no" if executed == "no" else "maybe")


class Context:
    """The `ChannelContext` given to an adapter."""

    def __init__(self, worker: Worker, load: frames.Load, log: logging.Logger) -> None:
        self.channel, self.agents, self.config = load.channel, load.agents, load.config
        self.data_dir, self.log = Path(load.data_dir), log
        self._ask = worker.ask

    async def prompt(
        self, conversation: str, text: str, *, agent: str = "", sender: str = "",
        on_event: OnEvent | None = None, deltas: bool = False,
    ) -> PromptResult:  # fmt: skip
        if not 0 < len(text) <= frames.MAX_TEXT:
            raise Malformed(f"text: {len(text)} characters; from 1 to {frames.MAX_TEXT} are allowed")
        said = text.encode(errors="replace").decode()
        who = sender.encode(errors="replace").decode()[:128]
        result: PromptResult = await self._ask(
            frames.AskPrompt, conversation, agent, said, who, deltas, on_event=on_event
        )
        return result

    async def cancel(self, conversation: str, *, agent: str = "") -> int:
        return int((await self._ask(frames.AskCancel, conversation, agent)).cancelled)

    async def new_session(self, conversation: str, *, agent: str = "") -> str:
        return str((await self._ask(frames.AskNewSession, conversation, agent)).session)

    async def status(self, conversation: str, *, agent: str = "") -> ConversationStatus:
        status: ConversationStatus = await self._ask(frames.AskStatus, conversation, agent)
        return status

    async def settings(
        self, conversation: str, *, agent: str = "",
        set: SessionSettings | None = None, unset: Sequence[Name] = (),
    ) -> SettingsReply:  # fmt: skip
        reply: SettingsReply = await self._ask(
            frames.AskSettings, conversation, agent, set or SessionSettings(), list(unset)
        )
        return reply


def main(descriptor: int, host: int) -> None:
    """Serve the host (process id `host`) on the inherited socket `descriptor`."""
    worker.serve(descriptor, host, Worker)
