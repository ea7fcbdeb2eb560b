"""Decides what Up and Down show: what was said before, and what is being written. No I/O."""

from __future__ import annotations

LIMIT = 500


class History:
    def __init__(self) -> None:
        self._said: list[str] = []
        self._at: int | None = None
        """Place of what is shown; None while it is what is being written."""
        self._draft = ""

    def add(self, text: str) -> None:
        if text and (not self._said or self._said[-1] != text):
            self._said.append(text)
            del self._said[:-LIMIT]
        self._at, self._draft = None, ""

    def replace(self, said: list[str]) -> None:
        """Another session: its prompts."""
        self._said, self._at, self._draft = said[-LIMIT:], None, ""

    def up(self, shown: str) -> str | None:
        """What to show instead of `shown`; None at the beginning."""
        if self._at is None:
            if not self._said:
                return None
            self._draft, self._at = shown, len(self._said) - 1
        elif self._at == 0:
            return None
        else:
            self._at -= 1
        return self._said[self._at]

    def down(self) -> str | None:
        if self._at is None:
            return None
        self._at += 1
        if self._at < len(self._said):
            return self._said[self._at]
        self._at = None
        return self._draft
