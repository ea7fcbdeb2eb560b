"""What the provider simulator answers: content in no provider's format, and faults."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Say:
    """Text, sent in `pieces` deltas. `refusal`: as OpenAI tells a model's own refusal."""

    text: str
    pieces: int = 3
    refusal: bool = False


@dataclass(frozen=True)
class Think:
    text: str
    signature: str = "c2lnbmVk"


@dataclass(frozen=True)
class Tool:
    """A tool call; its arguments are sent in `pieces` deltas, cut anywhere. `raw` replaces them."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)
    id: str = "toolu_01"
    pieces: int = 4
    raw: str | None = None


Content = Say | Think | Tool


@dataclass(frozen=True)
class Fault:
    """How a stream goes wrong after `after` events (or SSE chunks) were sent."""

    kind: Literal["cut", "hang", "malformed", "error_event", "end"]
    after: int = 0
    error_type: str = "overloaded_error"
    message: str = "Overloaded"


@dataclass(frozen=True)
class Reply:
    """One answer of a model. `stop` None: what fits the content."""

    content: tuple[Content, ...]
    stop: str | None = None
    fault: Fault | None = None
    usage: bool = True
    """Whether the numbers are told at all. They mean what `services.llm.providers.base.USAGE` says; each
    wire tells them as its API does."""
    input_tokens: int = 25
    output_tokens: int = 15
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    variant: frozenset[str] = frozenset()
    """Ways in which compatible servers bend the formats, see each wire: `no_done`, `null_content`,
    `empty_choices`, `whole_args`, `object_args`, `same_index`, `no_index`, `keep_alive`."""

    @property
    def all_input_tokens(self) -> int:
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def used(self) -> dict[str, int]:
        """The usage that beige should say."""
        names = ("input", "output", "cache_read", "cache_write", "reasoning") if self.usage else ()
        found = {f"{name}_tokens": int(getattr(self, f"{name}_tokens")) for name in names}
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True)
class Refusal:
    """An HTTP error instead of a stream. `body` None: the provider's own error body."""

    status: int
    error_type: str = "api_error"
    message: str = "something went wrong"
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    content_type: str = "application/json"


@dataclass(frozen=True)
class Silence:
    """The request is read and nothing is ever answered."""


@dataclass(frozen=True)
class Raw:
    """An answer byte for byte, for servers that keep to no format. `cut`: the connection breaks off after it,
    else it ends as HTTP says."""

    body: bytes
    content_type: str = "text/event-stream"
    cut: bool = False


@dataclass(frozen=True)
class Drip:
    """`reply`, with a pause before each event. Without one: comments, as keep-alive, for ever."""

    pause_s: float
    reply: Reply | None = None


@dataclass(frozen=True)
class Held:
    """`reply`, once `gate` lets one answer through."""

    reply: Reply
    gate: threading.Semaphore


Answer = Reply | Refusal | Silence | Raw | Drip | Held


def reply(*content: Content | str, **options: Any) -> Reply:
    """Short form: strings are text."""
    return Reply(tuple(Say(item) if isinstance(item, str) else item for item in content), **options)


def split(text: str, pieces: int) -> list[str]:
    """`text` in about `pieces` parts of equal length."""
    if not text:
        return []
    size = max(1, -(-len(text) // max(1, pieces)))
    return [text[at : at + size] for at in range(0, len(text), size)]
