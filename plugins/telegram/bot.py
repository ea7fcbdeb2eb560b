"""The bot: polls for messages, keeps those of listed people, and hands each to its conversation."""

from __future__ import annotations

import asyncio

import msgspec
from bot_api import ApiError, BotApi, Message, Unreachable, Update, updates_of
from bot_conversation import Conversation, Place
from bot_inbox import Entry, Inbox
from bot_settings import Settings
from bot_text import COMMANDS, ONLY_TEXT, PLAIN, STRANGER

from beige.plugins.channels import ChannelContext

POLL_S = 25
BATCH = 50
STRANGERS = 1000
"""Of whom it is known that they were answered once."""


class _Me(msgspec.Struct):
    username: str


class Bot:
    def __init__(self, ctx: ChannelContext, api: BotApi, settings: Settings, inbox: Inbox) -> None:
        self._ctx, self._api, self._settings, self._inbox = ctx, api, settings, inbox
        self._conversations: dict[Place, Conversation] = {}
        self._strangers: set[int] = set()
        self._name = ""

    async def serve(self) -> None:
        """Until cancelled. ApiError if Telegram refuses the token; ValueError for an agent that may not be
        spoken to, before anybody is told so."""
        log = self._ctx.log
        unlisted = sorted(set(self._settings.agents.values()) - set(self._ctx.agents))
        if unlisted:
            raise ValueError(f"config.agents: {unlisted[0]!r} is not among the channel's agents")
        me = await self._api.insist("getMe", log=log)
        self._name = msgspec.json.decode(me, type=_Me).username
        await self._api.insist("deleteMyCommands", log=log)
        commands = [{"command": name, "description": text} for name, text in COMMANDS.items()]
        await self._api.insist("setMyCommands", {"commands": commands}, log=log)
        log.info("serving as @%s", self._name)
        async with asyncio.TaskGroup() as group:
            for entry in await self._inbox.open():
                self._hand(entry, group)
            while True:
                await self._poll(group)

    async def _poll(self, group: asyncio.TaskGroup) -> None:
        offset = await self._inbox.offset()
        params = {"timeout": POLL_S, "limit": BATCH, "allowed_updates": ["message"]}
        if offset:
            params["offset"] = offset
        updates = updates_of(await self._api.insist("getUpdates", params, wait_s=POLL_S, log=self._ctx.log))
        found = [entry for update in updates if (entry := self._entry(update, group)) is not None]
        # Kept before the next poll, which is what makes Telegram forget them.
        after = max(update.update_id for update in updates) + 1 if updates else 0
        if after != offset:
            await self._inbox.take(found, after)
        for entry in found:
            self._hand(entry, group)

    def _entry(self, update: Update, group: asyncio.TaskGroup) -> Entry | None:
        """What is to be kept of an update."""
        message = update.message
        if message is None:
            return None
        user, chat = message.sender, message.chat
        if user is None or not self._settings.serves(user.id, chat.id, chat.type):
            self._refuse(message, group)
            return None
        thread = message.message_thread_id if message.is_topic_message else None
        if not message.text:
            group.create_task(self._say(chat.id, ONLY_TEXT, thread))
            return None
        return Entry(update.update_id, chat.id, thread, message.message_id, chat.type, user.id,
                     user.username or user.first_name, message.text)  # fmt: skip

    def _refuse(self, message: Message, group: asyncio.TaskGroup) -> None:
        """A stranger is told once, in private, and each time written down."""
        user = message.sender.id if message.sender else 0
        self._ctx.log.warning("refused: user %d in chat %d is not listed", user, message.chat.id)
        if message.chat.type != "private" or user in self._strangers or len(self._strangers) >= STRANGERS:
            return
        self._strangers.add(user)
        group.create_task(self._say(message.chat.id, STRANGER.format(user=user), None))

    async def _say(self, chat: int, text: str, thread: int | None) -> None:
        """Once: not worth more."""
        try:
            params = {"chat_id": chat, "text": text, **PLAIN}
            await self._api.call("sendMessage", params | ({"message_thread_id": thread} if thread else {}))
        except (ApiError, Unreachable) as error:
            self._ctx.log.warning("not told: %s", error)

    def _hand(self, entry: Entry, group: asyncio.TaskGroup) -> None:
        place = Place(entry.chat, entry.thread, entry.kind)
        conversation = self._conversations.get(place)
        if conversation is None:
            agent = self._settings.agents.get(entry.chat, "")
            conversation = Conversation(place, agent, self._name, self._ctx, self._api, self._inbox)
            self._conversations[place] = conversation
            group.create_task(conversation.intake(), name=f"intake {place.conversation}")
            group.create_task(conversation.prompts(), name=f"prompts {place.conversation}")
        if not conversation.hand(entry):
            self._ctx.log.error("chat %d writes too fast: a message is dropped", entry.chat)
            group.create_task(self._inbox.done(entry.id))
