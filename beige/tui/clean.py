"""Decides how text of agents, models and files is shown: nothing in it drives the terminal, reorders
what is read, or is taken for markup. Everything foreign passes here before a widget gets it.

Stops an agent whose output would set the clipboard, rewrite what the operator saw, or fake a notice of
this client (`tests/attacks/test_terminal_injection.py`).
"""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

from beige.cli.terminal import safe


def clean(text: str, limit: int) -> str:
    """At most `limit` characters over many lines."""
    return safe(text[:limit])


def one_line(text: str, width: int) -> str:
    """At most `width` cells on one line."""
    line = safe(" ".join(text[: width * 8].split()))
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"


def tail(text: str, limit: int, lines: int) -> str:
    """The last `limit` characters, and at most so many lines of them."""
    kept = text[-limit:]
    if len(kept) < len(text):
        start = kept.find("\n") + 1
        kept = kept[start if start < limit // 2 else 0 :]
    rows = kept.split("\n")
    kept = "\n".join(rows[-lines - 1 :])
    return safe(kept) if len(kept) == len(text) else "[...]\n" + safe(kept)
