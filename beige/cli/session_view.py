"""Prints a session's file for people. All of it is foreign text: models' words, tools' output.

What was said stands behind a mark, line by line, and what is named in our own lines stays in one: no model
can write a heading, and with it a prompt or an answer that never was (`tests/attacks/test_forged_lines.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from beige.cli.terminal import OUTPUT, summary

if TYPE_CHECKING:
    from beige.cli.terminal import Writer
    from beige.messages.llm import SessionInfo

MAX_LINE = 64 * 1024 * 1024
THOUGHT = "~ "
RESULT_LINES, RESULT_CHARS = 12, 2000
"""Of a tool's result, unless all of it is asked for."""


class LineSplitter:
    """Pieces in, whole lines out. A line that is too long is dropped."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        self._rest += piece
        if b"\n" not in piece:
            return
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest if len(rest) <= MAX_LINE else bytearray()
        yield from map(bytes, lines)


class SessionView:
    def __init__(self, out: Writer, full: bool = False) -> None:
        self._out, self._full = out, full
        self._show = {
            "session": self._session,
            "context": self._context,
            "prompt": self._prompt,
            "hook": self._hook,
            "assistant": self._assistant,
            "tool_start": lambda entry: None,
            "tool_result": self._tool_result,
            "attempt": self._attempt,
            "compaction": self._compaction,
            "turn_end": self._turn_end,
            "notice": self._notice,
        }

    def line(self, raw: bytes) -> None:
        """One entry. What can't be read, or is of a newer version, is shown as such."""
        try:
            entry = json.loads(raw)
            show = self._show.get(entry["type"])
            if show is None:
                self._note(f"an entry of type {entry['type']!r}", "dim")
            else:
                show(entry)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._note("an unreadable line", "red")

    def end(self, info: SessionInfo) -> None:
        if info.problem:
            self._note(f"damaged: {info.problem}", "red")
        elif info.outcome == "running":
            self._note("this turn is under way", "yellow")
        elif info.outcome == "interrupted":
            self._note("this turn was interrupted: its process ended", "yellow")

    def _session(self, entry: dict[str, Any]) -> None:
        origin = f", copied from {entry['forked_from']}" if entry.get("forked_from") else ""
        agent, name = entry.get("agent"), entry.get("id")
        self._out.line(f"{agent}, session {name}, begun {_time(entry)}{origin}", "dim")

    def _context(self, entry: dict[str, Any]) -> None:
        if entry.get("agents_md"):
            self._note("the workspace's AGENTS.md is part of the system prompt", "dim")

    def _prompt(self, entry: dict[str, Any]) -> None:
        source = "".join(f", {entry[key]}" for key in ("channel", "sender") if entry.get(key))
        self._heading(f"USER ({_time(entry)}{source})")
        self._text(entry.get("text"))

    def _hook(self, entry: dict[str, Any]) -> None:
        """What a plugin made of the prompt or the answer above."""
        state, prompt = entry.get("state"), entry.get("hook") == "prePrompt"
        what, gets = ("prompt", "the model got") if prompt else ("answer", "the user got")
        plugin = f"plugin {entry.get('plugin')!r}"
        if state == "replaced":
            self._note(f"{plugin} changed the {what}; {gets}:", "yellow")
            self._out.quoted(str(entry.get("text")), "dim", OUTPUT)
        elif state == "unchanged":
            self._note(f"{plugin} let the {what} pass", "dim")
        else:
            did = {"refused": f"refused the {what}", "skipped": "was done without"}.get(str(state), "failed")
            self._note(f"{plugin} {did}: {entry.get('reason')}", "yellow")

    def _assistant(self, entry: dict[str, Any]) -> None:
        script = ", a script" if entry.get("scripted") else ""
        self._heading(f"{entry.get('model')}{script} ({_time(entry)})")
        for block in entry.get("content") or []:
            self._block(block)
        stop = entry.get("stop_reason")
        if stop not in ("end_turn", "tool_use"):
            self._note(f"it stops here: {stop}", "yellow")

    def _block(self, block: dict[str, Any]) -> None:
        match block.get("type"):
            case "text":
                self._text(block.get("text"))
            case "tool_call":
                name, arguments = str(block.get("name")), block.get("args") or {}
                text = (
                    f"not readable: {block['invalid']}" if block.get("invalid") else summary(name, arguments)
                )
                self._out.line(f"> {name} {text}", "cyan")
            case "thinking" if self._full and block.get("text"):
                self._out.quoted(str(block["text"]), "dim", THOUGHT)

    def _tool_result(self, entry: dict[str, Any]) -> None:
        failed = bool(entry.get("is_error"))
        code = f", exit code {entry['exit_code']}" if entry.get("exit_code") else ""
        seconds = f"{float(entry.get('duration_ms') or 0) / 1000:.2f} s"
        state = "failed" if failed else "done"
        self._out.line(f"  {entry.get('tool')} {state}{code} ({seconds})", "red" if failed else "dim")
        text = "\n".join(_shown(block) for block in entry.get("content") or []).rstrip("\n")
        shown = text if self._full else _cut(text)
        self._out.quoted(shown, "dim", OUTPUT)
        if len(text) > len(shown):
            self._out.line(f"  ... {len(text) - len(shown)} more characters: --full", "dim")

    def _attempt(self, entry: dict[str, Any]) -> None:
        void = "; what it had said is void" if entry.get("text") else ""
        self._note(f"{entry.get('error')}{void}", "yellow")

    def _compaction(self, entry: dict[str, Any]) -> None:
        self._note(f"the first {entry.get('messages')} messages are summarised for the model:", "yellow")
        self._out.quoted(str(entry.get("summary")), "dim", OUTPUT)

    def _turn_end(self, entry: dict[str, Any]) -> None:
        outcome = entry.get("outcome")
        if outcome != "answered":
            why = f": {entry['error']}" if entry.get("error") else ""
            self._note(f"the turn ended: {outcome}{why}", "yellow")

    def _notice(self, entry: dict[str, Any]) -> None:
        self._note(str(entry.get("text")), "yellow")

    def _heading(self, text: str) -> None:
        self._out.write("\n")
        self._out.line(text, "bold")

    def _text(self, text: Any) -> None:
        text = str(text or "")
        if text.strip():
            self._out.quoted(text)

    def _note(self, text: str, style: str) -> None:
        self._out.line(f"[{text}]", style)


def _cut(text: str) -> str:
    lines = text[:RESULT_CHARS].rstrip("\n").split("\n")
    return "\n".join(lines[:RESULT_LINES])


def _time(entry: dict[str, Any]) -> str:
    return str(entry.get("ts") or "?")[:19].replace("T", " ")


def _shown(block: dict[str, Any]) -> str:
    return str(block.get("text", "")) if block.get("type") == "text" else f"({block.get('media_type')})"
