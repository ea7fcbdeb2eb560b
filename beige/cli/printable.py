"""Makes text of agents safe for a terminal: it can't move the cursor, recolour or reorder what is shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with control, format and bidi characters as escapes (`test_nothing_controls_the_terminal`)."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    if short:
        return short
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
