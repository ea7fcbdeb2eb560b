"""The pieces a conversation is shown in. Every foreign text in them has passed `clean`, and is given to
widgets as content, never as markup."""

from __future__ import annotations

import time
from typing import Any

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Collapsible, Static

from beige.cli.terminal import summary
from beige.tui.clean import clean, one_line, tail
from beige.tui.events import TurnEvent

SHOWN = 50_000
"""Characters of a text that are shown."""
OUTPUT, OUTPUT_LINES = 16_000, 300
"""What is shown of a command's output: its end."""
TITLE, FRAME, LEAST_CALL = 300, 12, 20
"""Cells of a title at most; what stands around it; what is always left for the call itself."""


class Note(Static):
    """Something this client or the house says."""

    def __init__(self, text: str, kind: str = "notice") -> None:
        super().__init__(Content(clean(text, SHOWN)), markup=False, classes=f"note {kind}")


class Said(Static):
    """What the user said."""

    def __init__(self, text: str) -> None:
        super().__init__(Content(clean(text, SHOWN)), markup=False, classes="said")


class Folded(Collapsible):
    """A block of text that can be unfolded."""

    def __init__(self, title: str, text: str = "", *, folded: bool = True, classes: str = "") -> None:
        self._text = Static(Content(text), markup=False)
        super().__init__(self._text, title=_title(title), collapsed=folded, classes=classes)

    def show(self, text: str) -> None:
        self._text.update(Content(text))

    def rename(self, title: str) -> None:
        self.title = _title(title)


class Thinking(Folded):
    def __init__(self) -> None:
        super().__init__("thinking", classes="thinking")
        self._said = ""

    def add(self, text: str) -> None:
        self._said = (self._said + text)[-SHOWN:]
        self.show(clean(self._said, SHOWN))


class ToolCall(Folded):
    """One call: what is run, its output as it comes, and how it ended."""

    def __init__(self, event: TurnEvent, *, folded: bool) -> None:
        self._call = f"{event.tool or 'tool'} {summary(event.tool, event.args)}".strip()
        self._args, self._output, self._state = _arguments(event.args), "", "running"
        self._since, self._width = time.monotonic(), 80
        self.over = False
        super().__init__(self._line(), folded=folded, classes="tool running")

    def on_mount(self) -> None:
        self._width = self.app.size.width
        self.rename(self._line())
        self._refresh()

    def tick(self) -> None:
        """A second has passed."""
        if not self.over:
            self._state = f"running, {time.monotonic() - self._since:.0f} s"
            self.rename(self._line())

    def add(self, text: str) -> None:
        self._output = (self._output + text)[-2 * OUTPUT :]
        self._refresh()

    def end(self, event: TurnEvent) -> None:
        self.over = True
        self._state, kind = outcome(event)
        if not self._output or event.is_error:
            self.add(("\n" if self._output else "") + event.text)
        self._is(kind)
        self.rename(self._line())
        self._refresh()
        if kind == "denied":
            self.collapsed = False

    def broken(self, why: str) -> None:
        """Its turn is over and its end was not told."""
        if not self.over:
            self.over, self._state = True, why
            self._is("failed")
            self.rename(self._line())

    def _is(self, kind: str) -> None:
        self.remove_class("running")
        self.add_class(kind)

    def _line(self) -> str:
        """On one line of the terminal: how it ended matters more than all of the command."""
        width = self._width - FRAME
        state = one_line(self._state, max(width - LEAST_CALL, 10))
        return f"{one_line(self._call, max(width - cell_len(state), LEAST_CALL))} — {state}"

    def on_collapsible_expanded(self) -> None:
        self._refresh()

    def _refresh(self) -> None:
        """What nobody sees is not laid out."""
        if self.collapsed:
            return
        parts = [part for part in (self._args, tail(self._output, OUTPUT, OUTPUT_LINES)) if part]
        self.show("\n".join(parts))


def outcome(event: TurnEvent) -> tuple[str, str]:
    """How a call ended, in words, and the class it is shown as."""
    seconds = f"{event.duration_ms / 1000:.1f} s"
    first = next(iter(event.text.strip().splitlines()), "failed")
    if event.is_error and first.startswith("denied:"):
        return f"DENIED: {first.removeprefix('denied:').strip()}", "denied"
    if event.is_error:
        return f"failed: {first}, {seconds}", "failed"
    if event.exit_code is None:
        return f"done, {seconds}", "done"
    return f"exit code {event.exit_code}, {seconds}", "done" if event.exit_code == 0 else "failed"


def _arguments(args: dict[str, Any]) -> str:
    """What the title can't hold: each argument of more than a line."""
    texts = {name: str(value) for name, value in args.items()}
    long = {name: text for name, text in texts.items() if "\n" in text.strip() or len(text) > 100}
    return "\n".join(f"{one_line(name, 40)}:\n{clean(text, OUTPUT)}" for name, text in long.items())


def _title(text: str) -> Any:
    """As content: a title given as text would be read as markup
    (`tests/attacks/test_terminal_injection.py`)."""
    return Content(one_line(text, TITLE))
