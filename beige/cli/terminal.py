"""Writes for people: colour where it is wanted, progress on one line, nothing that drives the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from beige.unseen import UNSEEN, escape_json

_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{UNSEEN}]")
"""C0 but newline and tab, C1, and what is not seen."""
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def safe(text: str) -> str:
    """`text` with every control character but newline and tab made visible.

    Stops an agent whose output would rewrite what the operator saw before, set the clipboard or answer
    for them (`tests/unit/cli/test_terminal.py`).
    """
    return _CONTROL.sub(lambda found: _visible(found[0]), text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """`text` safe, and its line breaks visible: what stands in a line of ours can't begin another."""
    return safe(text).replace("\n", "\\n")


def _visible(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


ARGUMENT_WIDTH = 100
QUOTE = "| "
OUTPUT = "  | "
"""Before each line of what a model or a person said, of what a tool or command gave back."""


class Writer:
    """One output stream. `write` cleans text if a terminal reads it, and passes it on as it is otherwise."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()
        self._colour = (
            self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )

    def write(self, text: str) -> None:
        self._stream.write(safe(text) if self.is_terminal else text)
        self._stream.flush()

    def styled(self, text: str, style: str = "", end: str = "\n") -> None:
        text = safe(text)
        coloured = self._colour and style
        self._stream.write((f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if coloured else text) + end)
        self._stream.flush()

    def line(self, text: str, style: str = "") -> None:
        """A line of ours, whatever foreign text is in it."""
        self.styled(one_line(text), style)

    def quoted(self, text: str, style: str = "", mark: str = QUOTE) -> None:
        """Foreign text, each line behind a mark: none can look like a line of ours
        (`tests/attacks/test_forged_lines.py`)."""
        for line in text.replace("\r\n", "\n").rstrip("\n").split("\n"):
            self.styled(f"{mark}{line}".rstrip(), style)

    def bytes(self, data: bytes) -> None:
        """A command's output: untouched into a pipe or file, cleaned for a terminal."""
        if self.is_terminal:
            self.write(data.decode("utf-8", "replace"))
        else:
            self._stream.buffer.write(data)
            self._stream.buffer.flush()


class Progress:
    """What is going on, on stderr: one line that changes on a terminal, one line per change elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._last = ""

    def __call__(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{safe(text)}")
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def done(self) -> None:
        """Clear the line, so that what follows starts on a clean one."""
        if self._last and self._stream.isatty():
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._last = ""


def emit(value: Any) -> None:
    """One JSON document on stdout: indented for people, one line for pipes."""
    text = json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False, default=str)
    print(escape_json(text.encode("utf-8", "replace")).decode(), flush=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns; the first row is the heading."""
    cells = [[safe(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def summary(tool: str, args: dict[str, Any]) -> str:
    """The argument that says most, in one line."""
    text = str(args.get("command") or args.get("path") or "") or " ".join(f"{k}={v}" for k, v in args.items())
    first, *rest = text.split("\n")
    if len(first) > ARGUMENT_WIDTH:
        first, rest = first[:ARGUMENT_WIDTH], [""]
    return first + (" ..." if rest else "")


def duration(seconds: float) -> str:
    """`75` as `1m15s`."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}m{seconds % 60:02.0f}s"
    return f"{seconds // 3600:.0f}h{seconds % 3600 // 60:02.0f}m"
