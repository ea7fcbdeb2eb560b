"""What `beige egress` shows: destinations from audit records, an allowlist to paste. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from beige.auditlog import Record
from beige.errors import Malformed

_DURATION = re.compile(r"([1-9]\d{0,5})([smh])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
MAX_S = 24 * 3600


@dataclass
class Destination:
    """All that the log says about one `host:port`."""

    destination: str
    allowed: int = 0
    denied: int = 0
    failed: int = 0
    """Allowed, and ended in an error: refused by the guards, not reached, cut off."""
    sent_bytes: int = 0
    received_bytes: int = 0
    rule: str = ""
    last: str = ""
    error: str = ""
    """The last one."""


def destinations(records: Iterable[Record], agent: str, since: str = "") -> list[Destination]:
    """Of the agent, by name. `since`: a time in the log's own form."""
    found: dict[str, Destination] = {}
    for record in records:
        if record.type != "egress" or record.agent != agent or record.ts < since or not record.args:
            continue
        one = found.setdefault(record.args[0], Destination(record.args[0]))
        one.last = max(one.last, record.ts)
        if record.phase == "started":
            one.allowed += 1
            one.rule = record.rule
        elif record.decision == "denied":
            one.denied += 1
            one.error = record.error
        else:
            one.sent_bytes += record.input_bytes or 0
            one.received_bytes += record.output_bytes or 0
            one.failed += bool(record.error)
            one.error = record.error or one.error
    return sorted(found.values(), key=lambda one: one.destination)


def pasteable(allow: Iterable[str]) -> str:
    """The list as it is written in config.json5."""
    lines = [f"  {json.dumps(one)}," for one in allow]
    return "\n".join(["egress: { allow: [", *lines, "] }"])


def seconds(text: str) -> float:
    """`90s`, `10m`, `2h`. Malformed otherwise."""
    match = _DURATION.match(text)
    length = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < length <= MAX_S:
        raise Malformed(f"--for: {text!r} is no time up to 24 hours; write 90s, 10m or 2h")
    return float(length)
