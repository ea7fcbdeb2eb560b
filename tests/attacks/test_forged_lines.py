"""Threat: what a model, a tool or a provider says begins a line that looks like one of ours, where a person
reads it: a prompt nobody gave, a call nobody made, a record that says it was allowed.

Each view is made twice, of plain words and of hostile ones at every place where foreign text can stand. The
lines that are ours must be as many, and none the forged one. The control writes the same text plainly.
"""

from __future__ import annotations

import io
import json

import pytest

from beige.auditlog import Record
from beige.cli import audit_query, logs
from beige.cli.prompt import TextView
from beige.cli.session_view import SessionView
from beige.cli.terminal import Writer
from beige.messages.llm import PromptEvent, PromptResult
from beige.tui import export

PLAIN = "plain"
FORGED = (
    "USER (2026-11-29 16:15:00, cli)", "p/m (2026-11-29 16:15:00)", "> exec make test",
    "  exec done (0.10 s)", "  done (0.10 s)", "  ... 9 more characters: --full", "[this turn is under way]",
    "[p/m; 1 tool call; session s1]", "## Prompt", "### Tool call: exec", "Result: exit code 0, 1.5 s", "```",
    "12:00:00.000 error   policy     everything is allowed",
    "2026-11-29 12:00:00.000  1-1  finished  travel  exec  rm -rf /  ok  1.0",
)  # fmt: skip
BREAKS = (
    "\n",
    "\r\n",
    "\r",
    "\x0b",
    "\x0c",
    "\x85",
    "\u2028",
    "\u2029",
    "\n| \n",
    "\n  | \n",
    "\n> ",
    "\n~ \n",
)
"""All that some reader takes for the end of a line, and attempts at our marks."""


def hostile(line: str, ending: str) -> str:
    return f"plain{ending}{line}{ending}plain"


def entries(text):
    at = {"ts": "2026-11-29T16:15:00.000Z"}
    said = {"type": "text", "text": text}
    calls = [
        {"type": "tool_call", "id": "1", "name": text, "args": {"command": text}},
        {"type": "tool_call", "id": "2", "name": "read", "invalid": text},
    ]
    found = [
        {"type": "session", "id": "s1", "agent": "travel", "forked_from": text},
        {"type": "prompt", "text": text, "channel": text},
        {"type": "assistant", "model": text, "stop_reason": text,
         "content": [{"type": "thinking", "text": text}, said, *calls]},
        {"type": "tool_result", "tool_id": "1", "tool": text, "content": [said], "duration_ms": 1},
        {"type": "attempt", "model": "p/m", "error": text, "text": text},
        {"type": "compaction", "messages": 2, "summary": text},
        {"type": "turn_end", "outcome": "failed", "error": text},
        {"type": "notice", "text": text},
        {"type": text},
    ]  # fmt: skip
    return [{**at, **entry} for entry in found]


def session(text):
    out = io.StringIO()
    view = SessionView(Writer(out), full=True)
    for entry in entries(text):
        view.line(json.dumps(entry).encode())
    return out.getvalue()


def cut_session(text):
    """A result so long that the view says how much it left out."""
    out = io.StringIO()
    result = {"type": "tool_result", "tool": "exec", "content": [{"type": "text", "text": text + "\nx" * 99}]}
    SessionView(Writer(out)).line(json.dumps(result).encode())
    return out.getvalue()


def prompt(text):
    out, err = io.StringIO(), io.StringIO()
    view = TextView(Writer(out), Writer(err))
    for event in (
        PromptEvent("notice", text=text),
        PromptEvent("thinking_delta", text=text),
        PromptEvent("tool_start", tool_id="1", tool=text, args={"command": text}),
        *(PromptEvent("tool_output", tool_id="1", stream="stdout", text=piece) for piece in (text, *text)),
        PromptEvent("tool_end", tool_id="1", tool=text, text=text, is_error=True),
        PromptEvent("model_fallback", text=text),
    ):
        view.event(event)
    view.result(PromptResult("s1", "", text, "p/m"))
    return err.getvalue()


def exported(text):
    return export.markdown("travel", "s1", entries(text))


def log(text):
    line = json.dumps({"ts": "2026-11-29T16:15:00.000Z", "level": "info", "msg": text, "traceback": text})
    return logs.pretty("llm-0", line)


MARKS = ("| ", "  | ", "~ ", "    | ")
VIEWS = {"sessions show --full": session, "sessions show": cut_session, "prompt": prompt, "logs": log}


def ours(text):
    """The lines that no mark says are foreign; by every sign that ends a line for anybody."""
    return [line for line in text.splitlines() if line and not f"{line} ".startswith(MARKS)]


def outside_quotes(text):
    """Of Markdown: what is neither quoted nor in a fence."""
    found, fence = [], ""
    for line in text.splitlines():
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = line.removesuffix("text")
        elif line and not f"{line} ".startswith("> "):
            found.append(line)
    return found


@pytest.mark.parametrize("ending", BREAKS, ids=ascii)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_no_text_begins_a_line_of_ours(view, ending):
    expected = len(ours(view(PLAIN)))
    for line in FORGED:
        seen = ours(view(hostile(line, ending)))
        assert len(seen) == expected, line
        assert line not in seen


@pytest.mark.parametrize("ending", BREAKS, ids=ascii)
def test_no_model_writes_a_heading_into_an_exported_session(ending):
    expected = outside_quotes(exported(PLAIN))
    for line in FORGED:
        assert outside_quotes(exported(hostile(line, ending))) == expected, line


def record(argument):
    return Record(
        ts="2026-11-29T16:15:00.000Z", id="1-1", phase="finished", agent="travel", tool="exec",
        args=[argument], decision="allowed", exit_code=1, duration_ms=1.0, type="core_tool",
    )  # fmt: skip


@pytest.mark.parametrize("between", ["  ", "   ", "\t", "\n", "\u00a0\u00a0", "\u2003"], ids=ascii)
def test_no_argument_adds_a_column_to_a_record(between):
    """`beige audit` into a pipe: two spaces end a cell."""
    shown = "  ".join(audit_query.row(record(between.join(("true", "exit 0", "9.9")))))
    cells = shown.split("  ")
    assert len(cells) == len(audit_query.COLUMNS)
    assert cells[-2:] == ["exit 1", "1.0"]


@pytest.mark.parametrize("line", FORGED)
def test_written_plainly_each_of_them_is_taken_for_ours_control(line):
    seen = hostile(line, "\n")
    assert line in ours(seen)
    assert line.startswith("```") or line in outside_quotes(seen) or line.startswith("> ")
