"""How `beige tap` shows an event: filter, one line, JSON line. Pure."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import msgspec

from beige.cli.printable import printable
from beige.tapevent import TapEvent
from beige.unseen import escape_json


@dataclass(frozen=True)
class Filter:
    """What is shown; empty means any."""

    agent: str = ""
    session: str = ""
    service: str = ""
    method: str = ""
    errors: bool = False
    heartbeats: bool = False

    def matches(self, event: TapEvent) -> bool:
        if event.type == "HB" and not self.heartbeats:
            return False
        return (
            self.agent in ("", event.agent)
            and self.session in ("", event.session)
            and self.service in ("", event.service)
            and self.method in ("", event.method, f"{event.service}.{event.method}")
            and (not self.errors or event.type == "ERR")
        )


def json_line(event: TapEvent) -> str:
    return escape_json(msgspec.json.encode(event)).decode()


def clock(wall_ns: int) -> str:
    seconds, rest = divmod(wall_ns, 1_000_000_000)
    return time.strftime("%H:%M:%S", time.localtime(seconds)) + f".{rest // 1000:06d}"


def one_line(event: TapEvent) -> str:
    """`time  from → to  type  service.method  agent/session  details`"""
    ends = (event.peer, "bus") if event.dir == "in" else ("bus", event.peer)
    what = f"{event.service}.{event.method}" if event.method else event.service
    who = event.agent + (f"/{event.session}" if event.session else "")
    text = (
        f"{clock(event.wall_ns)}  {ends[0]:>9} → {ends[1]:<9}  {event.type:<7} "
        f"{what or '-':<13} {who or '-':<14} {_details(event)}"
    )
    return printable(text.rstrip())


def _details(event: TapEvent) -> str:
    parts = [event.hop if event.hop not in ("", "direct") else "", event.call]
    parts.append(f"under {event.parent}" if event.parent and event.type == "CALL" else "")
    parts.append(f"{event.size} B" if event.size else "")
    parts.append(f"credit {event.credit}" if event.type == "CREDIT" else "")
    parts.append(f"{event.latency_ms:.2f} ms" if event.latency_ms is not None else "")
    parts.append(f"attempt {event.attempt}" if event.attempt > 1 else "")
    parts.append("end" if event.end else "")
    parts.append(event.code + (" (may have been executed)" if event.maybe else ""))
    parts.append(f"exit {event.exit_code}" if event.exit_code is not None and event.type == "REPLY" else "")
    parts.append(event.error if event.error != event.code else "")
    parts.append(json.dumps(event.body, ensure_ascii=False) if event.body else "")
    return "  ".join(part for part in parts if part)


class Loss:
    """Copies that were made but never seen here: the broker's drops and this subscriber's own."""

    MAX_TOPICS = 4096

    def __init__(self) -> None:
        self.before_tap = 0
        self.own = 0
        self._base: int | None = None
        self._last: dict[bytes, int] = {}

    def note(self, topic: bytes, event: TapEvent) -> int:
        """How many copies are newly known to be lost."""
        if self._base is None:
            self._base = event.lost
        before = self.total
        self.before_tap = max(0, event.lost - self._base)
        last = self._last.get(topic)
        if last is not None and event.topic_seq > last + 1:
            self.own += event.topic_seq - last - 1
        if last is not None or len(self._last) < self.MAX_TOPICS:
            self._last[topic] = event.topic_seq
        return max(0, self.total - before)

    @property
    def total(self) -> int:
        return self.before_tap + self.own
