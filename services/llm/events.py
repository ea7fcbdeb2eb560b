"""What a turn is told (past participles) and what it wants done (imperatives)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from beige.messages.llm import PromptEvent, PromptResult
from services.llm.conversation import AnyEntry, Assistant, Hook, Prompt, ToolCall, ToolResult
from services.llm.providers.failures import ModelError

# --- events: from the model -----------------------------------------------------------------------


@dataclass(frozen=True)
class TextDelta:
    text: str


@dataclass(frozen=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a tool call's arguments: nothing to show, but a sign of life."""

    name: str


@dataclass(frozen=True)
class MessageDone:
    """The model's answer is complete. Always a stream's last event."""

    message: Assistant
    hooks: tuple[Hook, ...] = ()
    """What the agent's hooks made of its text."""


@dataclass(frozen=True)
class MovedOn:
    """An attempt failed and the next one follows. What the failed one said is void."""

    failed: str
    """The label of the model that failed."""
    kind: str
    reason: str
    """In words, with the label in front."""
    model: str
    """The label of the model that is tried next; may be the same."""
    scripted: bool = False
    """A script will speak."""


ModelEvent = TextDelta | ThinkingDelta | ToolCallDelta | MovedOn | MessageDone

# --- events: from elsewhere -----------------------------------------------------------------------


@dataclass(frozen=True)
class PromptAccepted:
    prompt: Prompt
    listened: bool = False
    """Somebody listens to it: those who decide about it, or others."""


@dataclass(frozen=True)
class PromptReviewed:
    """Those who decide about the prompt have answered. If one stopped it, it is the last."""

    hooks: tuple[Hook, ...]


@dataclass(frozen=True)
class ModelFailed:
    error: ModelError


@dataclass(frozen=True)
class ToolFinished:
    result: ToolResult


@dataclass(frozen=True)
class TurnCancelled:
    """By the caller, its death, the deadline, or because a child call was cancelled."""


@dataclass(frozen=True)
class Summarised:
    """The model's summary, as its answer to `Summarise.text`."""

    answer: Assistant


@dataclass(frozen=True)
class SummaryFailed:
    error: ModelError


Event = (
    ModelEvent | Summarised | SummaryFailed | PromptAccepted | PromptReviewed | ModelFailed | ToolFinished
    | TurnCancelled
)  # fmt: skip

# --- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Persist:
    """Append to the journal before the next command is carried out."""

    entry: AnyEntry
    sync: bool = False
    """Wait until the disk has it."""


@dataclass(frozen=True)
class Emit:
    event: PromptEvent


@dataclass(frozen=True)
class Review:
    """Ask the prompt's hooks."""

    prompt: Prompt


@dataclass(frozen=True)
class CallModel:
    """Ask for the next answer to `Turn.messages`."""


@dataclass(frozen=True)
class Summarise:
    """Ask for a summary of the older messages, which will stand in their place."""

    text: str
    """What the model is asked, with the transcript."""
    messages: int
    """As `Compaction.messages`."""
    reason: Literal["threshold", "too_long", "asked"]
    tokens: int
    """Size of the conversation now, about."""


@dataclass(frozen=True)
class RunTool:
    call: ToolCall


@dataclass(frozen=True)
class Finish:
    result: PromptResult


@dataclass(frozen=True)
class Fail:
    message: str
    refused: bool = False
    """A hook's decision, no accident."""


Command = Persist | Emit | Review | CallModel | Summarise | RunTool | Finish | Fail
