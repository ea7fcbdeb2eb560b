"""A session as a Markdown file, for people. Pure but for `write`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beige.cli.terminal import one_line, safe
from beige.errors import Failed, Malformed
from beige.tui.blocks import outcome
from beige.tui.events import TurnEvent, replay


def markdown(agent: str, session: str, entries: list[dict[str, Any]]) -> str:
    """Everything the session's file tells, but thinking. Control characters are written out, so that
    `cat` is safe too; what a model said is quoted, so that it can't write a heading of ours."""
    parts = [f"# {agent}, session {session}"]
    said = ""
    for event in replay(entries):
        if event.kind == "text_delta":
            said += event.text
            continue
        if said.strip():
            parts.append(_quoted(said.strip()))
        said = ""
        parts += _part(event)
    return safe("\n\n".join(parts) + "\n")


def _part(event: TurnEvent) -> Sequence[str]:
    match event.kind:
        case "prompt":
            return ["## Prompt", _fenced(event.text)]
        case "tool_start":
            return [
                f"### Tool call: {one_line(event.tool)}",
                _fenced("\n".join(f"{k}: {v}" for k, v in event.args.items())),
            ]
        case "tool_end":
            return [f"Result: {outcome(event)[0]}", _fenced(event.text)]
        case "notice" | "model_fallback" | "compaction":
            return [_fenced(event.text)]
    return []


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.replace("\r\n", "\n").split("\n"))


def _fenced(text: str) -> str:
    """A fence longer than any in the text: what an agent wrote can't end it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def write(path: str, text: str) -> str:
    """The file's whole name. Never replaces a file; Failed says why it can't be written."""
    target = Path(path).expanduser().absolute()
    if "\0" in path:
        raise Malformed("a file's name can't hold NUL")
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise Failed(f"{target}: {error.strerror}", executed="no") from error
    return str(target)
