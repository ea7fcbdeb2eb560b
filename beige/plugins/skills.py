"""What a plugin tells the model about itself: SKILL.md and README.md, of bounded size."""

from __future__ import annotations

from pathlib import Path

SKILL_FILES = ("SKILL.md", "README.md")
MAX_SKILL = 16 * 1024
"""Bytes kept of each file; they go into the system prompt."""


def skills(directory: Path) -> list[tuple[str, str]]:
    """(file name, text) of each file that exists, SKILL.md first. The same files stand in the
    sandbox at /tools/packages/<plugin>/. A file that can't be read is left out."""
    found = ((name, _text(directory / name)) for name in SKILL_FILES)
    return [(name, text) for name, text in found if text]


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_SKILL + 1)
    except OSError:
        return ""
    text = content[:MAX_SKILL].decode(errors="ignore" if len(content) > MAX_SKILL else "replace")
    return text + (f"\n[cut after {MAX_SKILL} bytes]\n" if len(content) > MAX_SKILL else "")
