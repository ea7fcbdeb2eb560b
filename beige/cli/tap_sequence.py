"""Draws calls as they walk the corridor, one line per step. Pure.

    source      policy      audit      executor
      ├──────────▶│                                 authorize  tools.call  travel
                  ├──────────▶│                     started    0.21 ms
                              ├──────────▶│         execute    0.18 ms
                              │◀──────────┤         finished   1.02 ms  exit 0
      │◀──────────────────────┤                     REPLY      1.74 ms

Several calls may be drawn at once: each line names its call.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from beige.cli.printable import printable
from beige.cli.tap_view import clock
from beige.tapevent import TapEvent

LANES = ("source", "policy", "audit", "executor")
WIDTH = 12
LANE_OF_HOP = {"authorize": 1, "started": 2, "execute": 3, "finished": 2, "direct": 3}
MAX_CALLS = 4096


@dataclass(slots=True)
class Walk:
    lane: int
    began_ns: int
    last_ns: int
    items: int = 0
    said: str = ""
    """What the station that is left answered: shown with the step away from it."""


class Sequence:
    def __init__(self) -> None:
        self._walks: OrderedDict[str, Walk] = OrderedDict()

    def header(self) -> str:
        return " " * 30 + "".join(f"{lane:<{WIDTH}}" for lane in LANES).rstrip()

    def lines(self, event: TapEvent) -> list[str]:
        """The lines an event adds: none for what is no step of a call."""
        if not event.call:
            return []
        if event.dir == "out" and event.type == "CALL":
            return [self._step(event)]
        walk = self._walks.get(event.call)
        if walk is None:
            return []
        if event.type == "ITEM" and event.dir == "in":
            walk.items += 1
        elif event.dir == "in" and event.type in ("REPLY", "ERR"):
            walk.said = _answer(event)
        elif event.dir == "out" and event.type == "CANCEL":
            return [self._line(event, walk, "cancel", walk.lane, walk.lane)]
        elif event.dir == "out" and event.type in ("REPLY", "ERR"):
            return [self._end(event, walk)]
        return []

    def _step(self, event: TapEvent) -> str:
        lane = LANE_OF_HOP.get(event.hop, 3)
        walk = self._walks.get(event.call)
        first = walk is None
        if walk is None:
            walk = self._walks[event.call] = Walk(0, event.mono_ns, event.mono_ns)
            if len(self._walks) > MAX_CALLS:
                self._walks.popitem(last=False)
        came_from, walk.lane = walk.lane, lane
        label = f"{event.hop:<10} {event.peer}"
        if first:
            label += f"  {event.service}.{event.method}  {event.agent}  from {event.src}"
            label += f"  under {event.parent}" if event.parent else ""
        return self._line(event, walk, label, came_from, lane)

    def _end(self, event: TapEvent, walk: Walk) -> str:
        del self._walks[event.call]
        total = (event.mono_ns - walk.began_ns) / 1e6
        label = f"{event.type:<10} {event.peer}  {event.code or 'ok'}"
        label += " (may have been executed)" if event.maybe else ""
        label += f"  {walk.items} items" if walk.items else ""
        return self._line(event, walk, f"{label}  {total:.2f} ms in all", walk.lane, 0)

    def _line(self, event: TapEvent, walk: Walk, label: str, start: int, end: int) -> str:
        since = (event.mono_ns - walk.last_ns) / 1e6
        walk.last_ns = event.mono_ns
        if since:
            label += f"  +{since:.2f} ms"
        if walk.said:
            label += f"  ({walk.said})"
            walk.said = ""
        lead = f"{clock(event.wall_ns)[:12]} {event.call[-16:]:>16} "
        return printable(f"{lead}{arrow(start, end)}{label}")


def arrow(start: int, end: int) -> str:
    """From one lane to another, padded to the width of all lanes."""
    low, high = min(start, end), max(start, end)
    length = (high - low) * WIDTH - 2
    if start == end:
        drawn = "●"
    elif start < end:
        drawn = "├" + "─" * length + "▶"
    else:
        drawn = "◀" + "─" * length + "┤"
    return (" " * (low * WIDTH) + drawn).ljust(len(LANES) * WIDTH)


def _answer(event: TapEvent) -> str:
    if event.type == "ERR":
        return event.code
    return f"exit {event.exit_code}" if event.exit_code is not None else ""
