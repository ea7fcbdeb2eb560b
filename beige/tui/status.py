"""Decides what the status line says, and what of it when the terminal is narrow. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size

from beige.tui.clean import one_line
from beige.tui.events import TurnEvent

SEPARATOR = " · "
INPUT, OUTPUT = ("input_tokens", "cache_read_tokens", "cache_write_tokens"), "output_tokens"
"""Names of a call's usage (docs/llm.md)."""
_AHEAD = re.compile(r"(\d+) (?:earlier prompt|ahead)|\b(\d+)\b")


@dataclass
class Status:
    agent: str = ""
    session: str = ""
    model: str = ""
    """Who answers, or answered last."""
    fallback_of: str = ""
    """The model that failed, while another one answers in its place."""
    context_tokens: int = 0
    context_window: int = 0
    """0: not known."""
    usage: Counter[str] = field(default_factory=Counter)
    cost: float | None = None
    running: bool = False
    waiting: str = ""
    """Why the turn has not begun: "2 ahead"."""
    queued: int = 0
    """Prompts written here that wait for the turn's end."""
    connection: str = "connecting"
    opening: bool = False
    """The session is being read; a prompt can't be sent yet."""
    _chosen: str = ""

    def session_is(self, agent: str, session: str, model: str) -> None:
        """Another session: what is counted begins anew."""
        self.agent, self.session, self.model = agent, session, model
        self._chosen, self.fallback_of, self.waiting = model, "", ""
        self.context_tokens, self.cost, self.usage = 0, None, Counter()

    def chosen(self, model: str, window: int) -> None:
        self.model = self._chosen = model
        self.context_window, self.fallback_of = window, ""

    def began(self) -> None:
        """A turn was sent: it begins with the chosen model."""
        self.running, self.waiting = True, ""
        self.model, self.fallback_of = self._chosen or self.model, ""

    def saw(self, event: TurnEvent) -> None:
        if event.kind == "notice" and event.text.startswith("waiting"):
            found = _AHEAD.search(event.text)
            self.waiting = f"{found[1] or found[2]} ahead" if found else "waiting"
        elif event.kind != "accepted":
            self.waiting = ""
        if event.kind == "model_fallback" and event.model not in ("", self.model):
            self.fallback_of, self.model = self.fallback_of or self.model, event.model
        if event.kind == "message_end":
            self._answered(event)

    def _answered(self, event: TurnEvent) -> None:
        self.model = event.model or self.model
        self.usage.update(event.usage)
        self.context_tokens = (
            sum(event.usage.get(name, 0) for name in (*INPUT, OUTPUT)) or self.context_tokens
        )
        if event.cost is not None:
            self.cost = (self.cost or 0.0) + event.cost

    def ended(self) -> None:
        self.running, self.waiting = False, ""

    def line(self, width: int) -> str:
        """At most `width` cells. What matters least goes first when there is no room."""
        parts = [(text, weight) for text, weight in self._parts() if text]
        while len(parts) > 1 and cell_len(SEPARATOR.join(text for text, _ in parts)) > width:
            parts.remove(min(parts, key=lambda part: part[1]))
        text = SEPARATOR.join(text for text, _ in parts)
        return text if cell_len(text) <= width else set_cell_size(text, max(width, 0))

    def _parts(self) -> list[tuple[str, int]]:
        """In their order, with how much each matters."""
        return [
            (self._state(), 9),
            (one_line(self.agent, 32), 8),
            (one_line(self.model, 48) + self._fallback(), 6),
            (self._context(), 5),
            (self._tokens(), 3),
            (f"${self.cost:.4f}" if self.cost else "", 4),
            (f"{self.queued} queued" if self.queued else "", 7),
            (one_line(self.session, 40), 2),
        ]

    def _state(self) -> str:
        if self.connection != "connected":
            return self.connection
        if self.opening:
            return "opening"
        return self.waiting or ("working" if self.running else "ready")

    def _fallback(self) -> str:
        return f" (for {one_line(self.fallback_of, 48)})" if self.fallback_of else ""

    def _context(self) -> str:
        if not self.context_tokens:
            return ""
        window = f"/{short(self.context_window)}" if self.context_window else ""
        return f"context {short(self.context_tokens)}{window}"

    def _tokens(self) -> str:
        if not self.usage:
            return ""
        return f"in {short(sum(self.usage[name] for name in INPUT))} out {short(self.usage[OUTPUT])}"


def short(count: int) -> str:
    """`12345` as `12.3k`."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 1_000_000 else f"{count / 1_000_000:.1f}M"
