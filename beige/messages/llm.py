"""Bodies of `llm.*`: prompts and sessions. Agent, session and channel are in the header."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from beige.messages.base import AgentRef, Body, Method
from beige.messages.session_settings import SessionSettings, SettingsReply, SettingsRequest


class PromptRequest(Body):
    """Agent, session and channel are in the header."""

    text: Annotated[str, Meta(min_length=1, max_length=512 * 1024)]
    settings: SessionSettings = field(default_factory=SessionSettings)
    """The channel's defaults; what was set for the session goes before them."""
    sender: Annotated[str, Meta(max_length=128)] = ""
    """Who says it, in the channel's words; for the record."""


class PromptEvent(Body):
    """One thing that happened in a turn, in order.

    kind                fields used
    accepted            session: the prompt is on disk, its turn begins (only notices come before)
    notice              text (e.g. that the model is scripted)
    text_delta          text
    thinking_delta      text
    tool_start          tool_id, tool, args (the call's arguments, for people)
    tool_output         tool_id, stream, text (live output of exec)
    tool_end            tool_id, tool, text (what the model gets, cut), exit_code, is_error, duration_ms
    message_end         model, usage, cost
    compaction          text: earlier turns were summarised; the session file keeps them
    model_fallback      text (what failed and why), model (the one tried next); an answer that was under
                        way is void, the next one replaces it
    """

    kind: Literal[
        "accepted", "notice", "text_delta", "thinking_delta", "tool_start", "tool_output", "tool_end",
        "message_end", "model_fallback", "compaction",
    ]  # fmt: skip
    session: str = ""
    text: str = ""
    tool_id: str = ""
    tool: str = ""
    args: dict[str, Any] = {}
    stream: str = ""
    exit_code: int | None = None
    is_error: bool = False
    duration_ms: float = 0.0
    model: str = ""
    usage: dict[str, int] = {}
    cost: float | None = None
    """US dollars; None if the model's price is not configured."""


class PromptResult(Body):
    session: str
    text: str
    """The final answer."""
    stop_reason: str
    model: str
    """`provider/model`."""
    scripted: bool = False
    """True when a script, not a language model, spoke."""
    tool_calls: int = 0
    usage: dict[str, int] = {}
    cost: float | None = None
    """US dollars of the whole turn; None if a price is not configured."""


# --- sessions ---------------------------------------------------------------------------------------


class SessionInfo(Body):
    session: str
    agent: str
    created: str
    updated: str
    """ISO 8601, UTC."""
    prompts: int
    entries: int
    """Lines of the session file."""
    title: str = ""
    """The first prompt's beginning, on one line."""
    model: str = ""
    """Who answered last."""
    outcome: str = ""
    """Of the last turn; "running" while one is under way, "interrupted" when its process died; "damaged"
    if the file can't be served."""
    problem: str = ""
    """What is wrong with the file."""
    context_tokens: int = 0
    """Tokens of the conversation in the last model call, as the provider counted them."""
    usage: dict[str, int] = {}
    cost: float | None = None
    """US dollars of all its answers; None if a price is not configured."""
    forked_from: str = ""


class SessionsRequest(Body):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class SessionList(Body):
    """The agent's sessions, the last used one first."""

    sessions: list[SessionInfo]
    total: int


class HistoryRequest(Body):
    """The session's file, as it is on disk, in raw chunks: JSON lines (docs/llm.md)."""

    after: Annotated[int, Meta(ge=0)] = 0
    """Skip so many entries: ask again with `entries` of the reply to go on. A torn last line is left out."""


class ForkRequest(Body):
    """A copy of the session in the header: what is said in one is unknown in the other."""

    to: Annotated[str, Meta(max_length=128)] = ""
    """The new session's id; "": one is made up."""
    prompts: Annotated[int, Meta(ge=0)] = 0
    """Copy only the first so many turns; 0: all that have ended."""


class CompactRequest(Body):
    """Summarise the session's older turns now."""

    instructions: Annotated[str, Meta(max_length=16 * 1024)] = ""
    """What the summary must keep, in words for the model."""


class CompactResult(Body):
    session: str
    summary: str
    """Its beginning."""
    entries: int
    """Entries that the summary stands for."""


METHODS = {
    "llm.sessions": Method(SessionsRequest, SessionList),
    "llm.session": Method(AgentRef, SessionInfo),
    "llm.history": Method(HistoryRequest, SessionInfo, bytes),
    "llm.fork": Method(ForkRequest, SessionInfo),
    "llm.remove": Method(AgentRef, SessionInfo),
    "llm.settings": Method(SettingsRequest, SettingsReply),
    "llm.compact": Method(CompactRequest, CompactResult, PromptEvent),
    "llm.prompt": Method(PromptRequest, PromptResult, PromptEvent),
}
