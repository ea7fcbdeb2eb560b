"""Typed bodies: one request, item and reply type per method, and which methods are governed.

Bodies are MessagePack maps; an unknown or wrong field is an error that names it. One module per
service holds its types and its rows of the table. The broker never imports this package.
"""

from __future__ import annotations

from typing import Any

import msgspec

from beige.messages import audit, bus, channels, chat, egress, llm, policy, sandbox, tools
from beige.messages.base import Method

METHODS: dict[str, Method] = {
    **sandbox.METHODS,
    **tools.METHODS,
    **egress.METHODS,
    **llm.METHODS,
    **chat.METHODS,
    **channels.METHODS,
    **audit.METHODS,
    **policy.METHODS,
    **bus.METHODS,
}

GOVERNED = frozenset({
    *("sandbox.exec", "sandbox.read", "sandbox.write", "sandbox.patch"),
    *("tools.call", "tools.hook", "egress.connect", "policy.lease"),
})  # fmt: skip
"""Calls that walk policy, audit, executor, audit. The broker's route table must say the same
(`tests/unit/broker/test_access.py`)."""

CORE_TOOLS = ("read", "write", "patch", "exec")


def encode(body: Any) -> bytes:
    return msgspec.msgpack.encode(body)
