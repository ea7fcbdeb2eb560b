"""What the channels process and a channel's own process say to each other. Pure.

The channel's process asks, the host answers; while a prompt runs the host sends its events, of which at
most `WINDOW` are not yet taken.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from beige.messages.base import Body
from beige.messages.bus import CancelResult
from beige.messages.llm import PromptEvent, PromptResult
from beige.messages.session_settings import Name, SessionSettings, SettingsReply
from beige.pluginhost.frames import MAX_FROM_PLUGIN, MAX_TO_PLUGIN, Close, Frame, FrameReader, Log, NotLoaded
from beige.plugins.channels import Conversation, ConversationStatus, Sender
from beige.plugins.manifest import Provides

WINDOW = 64
MAX_TEXT = 256 * 1024
"""Characters of one prompt: at most four bytes each, which is what a frame has room for."""
AgentName = Annotated[str, Meta(max_length=32)]


class NewSession(Body):
    session: str


# --- host to channel --------------------------------------------------------------------------------


class Load(Frame):
    """The first frame. Secrets ride here, never in arguments or the environment."""

    name: str
    """The plugin's."""
    directory: str
    data_dir: str
    provides: Provides
    adapter: str
    """The channel of the plugin that is to run."""
    channel: str
    """The channel's name in the configuration."""
    agents: tuple[str, ...]
    config: dict[str, Any]


class Event(Frame):
    id: int
    event: PromptEvent


class Reply(Frame):
    """The end of an ask: the MessagePack of its type in `REPLIES`."""

    id: int
    body: bytes


class Refused(Frame):
    """The end of an ask, with a `beige.errors` code."""

    id: int
    code: str
    message: str
    executed: str


# --- channel to host --------------------------------------------------------------------------------


class Loaded(Frame):
    pass


class Ended(Frame):
    """The adapter's `run` is over, and with it this process."""

    reason: Annotated[str, Meta(max_length=200)]
    """Holds no path and no text of a foreign exception."""


class Ask(Frame, tag=False):
    """Base of what is answered by one `Reply` or `Refused`."""

    id: int
    conversation: Conversation
    agent: AgentName


class AskPrompt(Ask, tag=True):
    text: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
    sender: Sender
    deltas: bool


class AskCancel(Ask, tag=True):
    pass


class AskNewSession(Ask, tag=True):
    pass


class AskStatus(Ask, tag=True):
    pass


class AskSettings(Ask, tag=True):
    set: SessionSettings
    unset: list[Name]


class Abandon(Frame):
    """Nobody waits for the ask's answer any more."""

    id: int


class Took(Frame):
    """One event of prompt `id` was handled."""

    id: int


AnyAsk = AskPrompt | AskCancel | AskNewSession | AskStatus | AskSettings
REPLIES: dict[type[Any], type[Any]] = {
    AskPrompt: PromptResult,
    AskCancel: CancelResult,
    AskNewSession: NewSession,
    AskStatus: ConversationStatus,
    AskSettings: SettingsReply,
}
ToPlugin = Load | Event | Reply | Refused | Close
FromPlugin = (
    Loaded | NotLoaded | Ended | Log | Abandon | Took
    | AskPrompt | AskCancel | AskNewSession | AskStatus | AskSettings
)  # fmt: skip


def host_reader() -> FrameReader[FromPlugin]:
    return FrameReader(FromPlugin, MAX_FROM_PLUGIN)


def plugin_reader() -> FrameReader[ToPlugin]:
    return FrameReader(ToPlugin, MAX_TO_PLUGIN)
