"""How `beige audit` picks and shows records: filter, times, table row, tree. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from beige import money
from beige.auditlog import Record, timestamp
from beige.cli.printable import printable
from beige.errors import Malformed

_AGO = re.compile(r"(\d+)([smhd])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True)
class Query:
    """What is asked for; empty means any. Times are in the log's own form, which sorts as text."""

    agent: str = ""
    tool: str = ""
    type: str = ""
    decision: str = ""
    session: str = ""
    channel: str = ""
    """`http` also means `http:NAME`, the calls of one token."""
    id: str = ""
    parent: str = ""
    phase: str = ""
    since: str = ""
    until: str = ""
    errors: bool = False

    def matches(self, record: Record) -> bool:
        return (
            all(
                getattr(self, name) in ("", getattr(record, name))
                for name in ("agent", "tool", "type", "decision", "session", "id", "parent", "phase")
            )
            and f"{record.channel}:".startswith(f"{self.channel}:" if self.channel else "")
            and (not self.since or record.ts >= self.since)
            and (not self.until or record.ts < self.until)
            and (not self.errors or is_error(record))
        )


def is_error(record: Record) -> bool:
    return record.decision == "denied" or bool(record.error) or bool(record.exit_code)


def moment(text: str, now: datetime) -> str:
    """A time as the log writes it, from `90s`, `15m`, `2h`, `7d` (ago) or ISO 8601 (local time unless it
    names a zone). Malformed otherwise."""
    if not text:
        return ""
    if match := _AGO.match(text):
        return timestamp(now.astimezone(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])}))
    try:
        return timestamp(datetime.fromisoformat(text).astimezone(UTC))
    except ValueError:
        raise Malformed(f"{text!r} is no time; write 15m, 2h, 7d or 2026-03-05T12:00:00") from None


COLUMNS = ("time", "id", "phase", "agent", "tool", "args", "result", "ms")


def row(record: Record) -> tuple[str, ...]:
    """The record's cells for `COLUMNS`, safe for a terminal."""
    cells = (
        record.ts.replace("T", " ").removesuffix("Z"),
        record.id,
        record.phase,
        record.agent,
        record.tool,
        " ".join(record.args),
        result(record),
        "" if record.duration_ms is None else f"{record.duration_ms:.1f}",
    )
    # Two spaces are between cells alone: no argument can look like a result.
    return tuple(printable(cell).replace("  ", " \\x20") for cell in cells)


def result(record: Record) -> str:
    if record.decision == "denied":
        return f"denied: {record.error}"
    if record.error:
        return record.error
    if record.exit_code is not None:
        return f"exit {record.exit_code}"
    if record.usage:
        return f"ok, {_used(record)}"
    if record.phase == "finished":
        return record.kind if record.type == "hook" else "ok"
    return ""


def _used(record: Record) -> str:
    output = record.usage.get("output_tokens", 0)
    cost = "" if record.cost_usd is None else f", {money.shown(money.nano(record.cost_usd))}"
    return f"{money.tokens(record.usage) - output:,} tokens in, {output:,} out{cost}"


@dataclass
class Node:
    """One call in a tree: its newest record, and the calls it caused, oldest first."""

    record: Record
    children: list[Node]


def tree(records: Iterable[Record]) -> list[Node]:
    """Calls under the call that caused them. One node per call; a call whose cause isn't among the
    records is a root. Loops, which only a forged log can hold, end up as nothing rather than for ever."""
    nodes: dict[str, Node] = {}
    for record in records:
        if known := nodes.get(record.id):
            known.record = record
        else:
            nodes[record.id] = Node(record, [])
    roots: list[Node] = []
    for node in nodes.values():
        parent = nodes.get(node.record.parent) if node.record.parent != node.record.id else None
        (parent.children if parent else roots).append(node)
    return roots


def tree_lines(roots: list[Node], width: int = 0) -> Iterator[str]:
    """The tree as text, lines cut to `width` (0: not cut)."""
    stack = [(root, "", "") for root in reversed(roots)]
    while stack:
        node, lead, indent = stack.pop()
        line = lead + _summary(node.record, root=not lead)
        yield line[: width - 1] + "…" if width and len(line) > width else line
        for index in range(len(node.children) - 1, -1, -1):
            last = index == len(node.children) - 1
            child = node.children[index]
            stack.append(
                (child, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  "))
            )  # fmt: skip


def _summary(record: Record, *, root: bool) -> str:
    """`root`: nothing that is shown caused it, so it says where it came from."""
    time, call, _, agent, tool, args, outcome, ms = row(record)
    outcome = outcome or "running, or lost"
    source = f" (through {printable(record.channel)})" if root and record.channel else ""
    return (
        f"{time[11:]} {call} {agent} {tool} {args[:200]} → {outcome}" + (f" {ms} ms" if ms else "") + source
    )
