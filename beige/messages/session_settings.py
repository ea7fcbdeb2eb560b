"""Bodies of `llm.settings`: how a session is shown and answered. Agent and session are in the header.

Three layers, the highest wins: what the operator configured (system), what a channel asks for its
users (channel, carried in the request), what was set for the session (session, kept on disk).
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from beige.messages.base import Body

Name = Literal["verbose", "streaming", "model", "thinkingLevel"]
NAMES: tuple[Name, ...] = ("verbose", "streaming", "model", "thinkingLevel")
ThinkingLevel = Literal["off", "minimal", "low", "medium", "high"]
Layer = Literal["system", "channel", "session"]


class SessionSettings(Body, rename={"thinking_level": "thinkingLevel"}):
    """One layer; None where it says nothing."""

    verbose: bool | None = None
    """A channel announces each tool call."""
    streaming: bool | None = None
    """A channel shows the answer while it is written."""
    model: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """`provider/model`: the one of the agent's own models that is asked first."""
    thinking_level: ThinkingLevel | None = None
    """For all of the agent's models."""

    def get(self, name: Name) -> bool | str | None:
        return getattr(self, "thinking_level" if name == "thinkingLevel" else name)  # type: ignore[no-any-return]


class SettingsRequest(Body):
    """Changes the session's layer (`unset`, then `set`), and tells what holds afterwards."""

    set: SessionSettings = field(default_factory=SessionSettings)
    unset: Annotated[list[Name], Meta(max_length=16)] = []
    defaults: SessionSettings = field(default_factory=SessionSettings)
    """The caller's own layer: not kept."""


class Setting(Body, omit_defaults=False):
    value: bool | str
    layer: Layer
    """Where the value is from."""


class SettingsReply(Body, omit_defaults=False):
    settings: dict[str, Setting]
    """Every setting by its name."""
    notices: list[str] = []
    """What could not be honoured, in words: a damaged file, a model that the agent no longer has."""
