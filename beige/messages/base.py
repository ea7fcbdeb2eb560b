"""What the typed bodies are made of, and the entry each method has in the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

Path = Annotated[str, Meta(min_length=1, max_length=4096)]
Argument = Annotated[str, Meta(max_length=512 * 1024)]
INLINE_LIMIT = 512 * 1024
"""Content above this many bytes is streamed in chunks of `wire.CHUNK`, not carried in the body."""


class Body(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all bodies."""


class Empty(Body):
    pass


class AgentRef(Body):
    """The agent (and session, where it takes one) is named in the header; nothing else is needed."""


@dataclass(frozen=True)
class Method:
    request: type[Any]
    reply: type[Any]
    item: type[Any] | None = None
    """Type of downstream items; `bytes` means raw chunks."""
