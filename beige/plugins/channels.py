"""What the author of a channel imports: the adapter it writes, and the context that one runs with.

A channel brings people's messages to agents and the answers back. `plugins/telegram` is the example,
`docs/channels.md` the guide.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

from msgspec import Meta

from beige.messages.base import Body
from beige.messages.llm import PromptEvent, PromptResult, SessionInfo
from beige.messages.session_settings import Name as SettingName
from beige.messages.session_settings import SessionSettings, Setting, SettingsReply

CONVERSATION_PATTERN = r"^[A-Za-z0-9._@+-]{1,64}\Z"
Conversation = Annotated[str, Meta(pattern=CONVERSATION_PATTERN, max_length=64)]
"""The channel's own name of a conversation: a chat's id, an address. Its sessions are called
`<channel>:<conversation>` and `<channel>:<conversation>:<time>`."""
Sender = Annotated[str, Meta(max_length=128)]
is_conversation = re.compile(CONVERSATION_PATTERN).match

OnEvent = Callable[[PromptEvent], Awaitable[None] | None]


class ConversationStatus(Body):
    """What `/status` shows."""

    agent: str
    session: str
    settings: dict[str, Setting]
    info: SessionInfo | None = None
    """None while the session has no prompt."""
    busy: int = 0
    """Prompts of this conversation that run or wait."""


class ChannelContext(Protocol):
    """What an adapter works with.

    `agent` may be left out everywhere: it is the first of `agents`, then. Another than those is refused.
    Every method raises `beige.errors.BeigeError`: its `code` says what went wrong, its text may be shown,
    and `executed` whether something may have been done.
    """

    channel: str
    """Its name in the configuration."""
    agents: tuple[str, ...]
    """The agents it may speak to."""
    config: dict[str, Any]
    """`channels.<name>.config`."""
    data_dir: Path
    """A private directory of this channel, kept across restarts. No other process uses it."""
    log: logging.Logger

    async def prompt(
        self,
        conversation: str,
        text: str,
        *,
        agent: str = "",
        sender: str = "",
        on_event: OnEvent | None = None,
        deltas: bool = False,
    ) -> PromptResult:
        """Say `text` in `conversation` and wait for the answer.

        One prompt runs in a conversation at a time, four more wait; beyond that: Overloaded. `sender` is who
        says it, for the session's record. `on_event` hears what happens, in order, one at a time: notices
        always, tool calls if the conversation is verbose, the answer while it is written if `deltas`.
        Cancelling the caller's task ends the turn.
        """  # fmt: skip
        ...

    async def cancel(self, conversation: str, *, agent: str = "") -> int:
        """End what runs and waits in the conversation; how many prompts that were."""
        ...

    async def new_session(self, conversation: str, *, agent: str = "") -> str:
        """The conversation goes on in a fresh session; its id. What runs still ends in the old one."""
        ...

    async def status(self, conversation: str, *, agent: str = "") -> ConversationStatus: ...

    async def settings(
        self,
        conversation: str,
        *,
        agent: str = "",
        set: SessionSettings | None = None,
        unset: Sequence[SettingName] = (),
    ) -> SettingsReply:
        """Change the conversation's own layer of settings, and tell what holds afterwards. Below it are
        `channels.<name>.defaults`, then what beige itself has."""  # fmt: skip
        ...


class ChannelAdapter(Protocol):
    """One kind of channel. An object of any class with this method."""

    async def run(self, ctx: ChannelContext) -> None:
        """Serve until cancelled, which happens when beige stops: there are two seconds to end in order. The
        process is started again if it returns or raises."""
