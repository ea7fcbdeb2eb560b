"""Where the user writes: many lines, history, paste."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from beige.tui.clean import clean
from beige.tui.history import History

MOST = 512 * 1024
"""Characters of a prompt; the API takes no more."""


class Editor(TextArea):
    @dataclass
    class Sent(Message):
        text: str

    def __init__(self) -> None:
        super().__init__(
            id="editor", soft_wrap=True, compact=True, placeholder="Say something; /help lists commands",
            highlight_cursor_line=False,
        )  # fmt: skip
        self.past = History()

    async def _on_key(self, event: events.Key) -> None:
        act = {
            "enter": self._send,
            "ctrl+j": self._new_line,
            "shift+enter": self._new_line,
            "up": self._older,
            "down": self._newer,
        }.get(event.key)
        if act is not None and act():
            event.stop()
            event.prevent_default()
            return
        await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        """Pasted text is text: no key in it acts, no escape in it reaches the terminal."""
        event.stop()
        event.prevent_default()
        room = MOST - len(self.text)
        if len(event.text) > room:
            self.notify(f"only {max(room, 0)} of {len(event.text)} characters fit", markup=False)
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        self.insert(clean(text, max(room, 0)))

    def _send(self) -> bool:
        """A backslash before the cursor asks for a new line, for terminals that know no Ctrl-J."""
        row, column = self.cursor_location
        if self.document[row][:column].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
            return True
        text = self.text
        if text.strip():
            self.past.add(text)
            self.text = ""
            self.post_message(self.Sent(text))
        return True

    def _new_line(self) -> bool:
        self.insert("\n")
        return True

    def _older(self) -> bool:
        row, _ = self.cursor_location
        return row == 0 and self._show(self.past.up(self.text))

    def _newer(self) -> bool:
        row, _ = self.cursor_location
        return row == self.document.line_count - 1 and self._show(self.past.down())

    def _show(self, text: str | None) -> bool:
        if text is None:
            return False
        self.text = text
        self.move_cursor(self.document.end)
        return True
