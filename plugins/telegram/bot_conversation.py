"""One chat, or one topic of a group: its commands at once, its prompts one after the other.

A message is done, and forgotten, when its answer is sent. One whose answer can't be sent for `SENDS`
attempts, or at all, is given up and said so in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

import bot_text
from bot_api import ApiError, BotApi, Unreachable
from bot_inbox import Entry, Inbox
from bot_text import Command

from beige.errors import BeigeError
from beige.messages.llm import PromptEvent
from beige.messages.session_settings import SessionSettings
from beige.plugins.channels import ChannelContext

WAITING = 5
"""Prompts that wait for the one that runs."""
INTAKE = 200
SENDS = 20
"""Attempts to send one message: at growing pauses, about eight minutes."""
TYPING_S = 4.5
"""Telegram shows "typing" for five seconds."""
LINES = 20


@dataclass(frozen=True)
class Place:
    chat: int
    thread: int | None
    kind: str

    @property
    def conversation(self) -> str:
        return str(self.chat) if self.thread is None else f"{self.chat}.{self.thread}"


class Conversation:
    """`intake` and `prompts` run as long as the bot does."""

    def __init__(
        self, place: Place, agent: str, bot: str, ctx: ChannelContext, api: BotApi, inbox: Inbox
    ) -> None:
        self._place, self._agent, self._bot = place, agent, bot
        self._ctx, self._api, self._inbox = ctx, api, inbox
        self._arrived: asyncio.Queue[Entry] = asyncio.Queue(INTAKE)
        self._waiting: deque[Entry] = deque()
        self._more = asyncio.Event()
        self._stops = 0
        self._told_busy = False
        """Whoever floods the chat is not answered in kind."""
        self._lines: list[str] = []
        self._speaking = asyncio.Lock()
        self._announcing: asyncio.Task[None] | None = None

    def hand(self, entry: Entry) -> bool:
        """Whether there was room for it."""
        try:
            self._arrived.put_nowait(entry)
        except asyncio.QueueFull:
            return False
        return True

    # --- in the order in which they came ----------------------------------------------------------------

    async def intake(self) -> None:
        while True:
            entry = await self._arrived.get()
            command = bot_text.command_of(entry.text, self._bot)
            if entry.begun:
                await self._end(entry, bot_text.INTERRUPTED.format(text=entry.text[:500]))
            elif command is not None:
                await self._end(entry, await self._obey(command))
            elif len(self._waiting) >= WAITING:
                await self._end(entry, "" if self._told_busy else bot_text.BUSY)
                self._told_busy = True
            else:
                self._waiting.append(entry)
                self._more.set()

    async def _obey(self, command: Command) -> str:
        """What a command answers; empty for another bot's."""
        try:
            match command.name:
                case "":
                    return ""
                case "start":
                    return bot_text.welcome(self._agent or self._ctx.agents[0])
                case "new":
                    await self._stop()
                    await self._ctx.new_session(self._place.conversation, agent=self._agent)
                    return "A fresh session."
                case "status":
                    found = await self._ctx.status(self._place.conversation, agent=self._agent)
                    found.busy += len(self._waiting)
                    return bot_text.status(found)
                case "verbose" | "v" if command.argument in ("on", "off"):
                    settings = SessionSettings(verbose=command.argument == "on")
                    await self._ctx.settings(self._place.conversation, agent=self._agent, set=settings)
                    return f"Verbose is {command.argument}."
                case "verbose" | "v":
                    return "Write /verbose on or /verbose off."
                case "stop":
                    return f"Stopped: {await self._stop()}."
            return "No such command; /start lists them."
        except BeigeError as error:
            return bot_text.apology(error)

    async def _stop(self) -> int:
        """Ends what runs, forgets what waits; how many messages that were."""
        self._stops += 1
        dropped = list(self._waiting)
        self._waiting.clear()
        for entry in dropped:
            await self._inbox.done(entry.id)
        return len(dropped) + await self._ctx.cancel(self._place.conversation, agent=self._agent)

    # --- one prompt at a time -----------------------------------------------------------------------------

    async def prompts(self) -> None:
        while True:
            await self._more.wait()
            if not self._waiting:
                self._more.clear()
                continue
            entry, stops = self._waiting.popleft(), self._stops
            self._told_busy = False
            await self._inbox.begin(entry.id)
            answer = await self._answer(entry) if stops == self._stops else "Stopped."
            await self._announce()
            await self._end(entry, answer)

    async def _answer(self, entry: Entry) -> str:
        typing = asyncio.create_task(self._typing(), name="typing")
        try:
            result = await self._ctx.prompt(
                self._place.conversation, entry.text, agent=self._agent,
                sender=bot_text.sender(entry.user, entry.name), on_event=self._heard,
            )  # fmt: skip
            return result.text or "(no answer)"
        except BeigeError as error:
            return bot_text.apology(error)
        finally:
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)

    def _heard(self, event: PromptEvent) -> None:
        """The turn is not made to wait for Telegram: lines that come meanwhile travel together."""
        if not (line := bot_text.announcement(event)):
            return
        self._lines.append(line)
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.create_task(self._announce(), name="announcing")

    async def _announce(self) -> None:
        async with self._speaking:
            lines, self._lines = self._lines, []
            if len(lines) > LINES:
                lines = [*lines[:LINES], f"... and {len(lines) - LINES} more"]
            if lines:
                await self._send("\n".join(lines), None)

    async def _typing(self) -> None:
        while True:
            with contextlib.suppress(ApiError, Unreachable):
                await self._api.call("sendChatAction", self._to() | {"action": "typing"})
            await asyncio.sleep(TYPING_S)

    # --- to Telegram --------------------------------------------------------------------------------------

    async def _end(self, entry: Entry, answer: str) -> None:
        """Say `answer`, then forget the message."""
        if answer:
            await self._send(answer, entry.message if self._place.kind != "private" else None)
        await self._inbox.done(entry.id)

    async def _send(self, text: str, reply_to: int | None) -> None:
        for piece in bot_text.pieces(text):
            params = self._to() | {"text": piece} | bot_text.PLAIN
            if reply_to is not None:
                params["reply_parameters"] = {"message_id": reply_to, "allow_sending_without_reply": True}
            try:
                await self._api.insist("sendMessage", params, attempts=SENDS, log=self._ctx.log)
            except (ApiError, Unreachable) as error:
                self._ctx.log.error("chat %d is not answered: %s", self._place.chat, error)
                return

    def _to(self) -> dict[str, object]:
        thread = {} if self._place.thread is None else {"message_thread_id": self._place.thread}
        return {"chat_id": self._place.chat, **thread}
