"""Names sessions: what an id is, and how a caller addresses a turn of one.

Whoever begins a session makes its id: the broker then knows it from the call's header, and
`bus.cancel` finds the turn from its first moment on.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from typing import Any

from beige.errors import Malformed
from beige.wire import MAX_TTL_S

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}\Z")


def new_id() -> str:
    """An id that sorts by time: `20261129-161500-1a2b3c4d`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def check_id(session: str) -> str:
    """The session's id, a new one if it is empty. Malformed for anything but a plain file name.

    Stops a caller from reading or writing a file outside the agent's directory by a session named
    `../other/id` (`tests/unit/test_session_ids.py`).
    """
    if not session:
        return new_id()
    if not _ID.match(session):
        raise Malformed(
            f"session: {session[:64]!r} is not a session id (letters, digits, . _ : @ + -, at most 128, "
            "starting with a letter or digit)"
        )
    return session


def affinity(agent: str, session: str) -> str:
    """The key that keeps a session's calls on one llm process, in their order."""
    return f"{agent}/{session}"


def turn_options(agent: str, session: str, channel: str) -> dict[str, Any]:
    """Keywords of `Bus.open` and `Bus.call` for `llm.prompt` and `llm.compact`. With its idempotency key a
    prompt that waits in a process that dies is served by another; one that had begun is told interrupted."""
    return {
        "agent": agent,
        "session": session,
        "channel": channel,
        "key": affinity(agent, session),
        "idem": secrets.token_hex(16),
        "ttl_s": MAX_TTL_S,
    }
