"""A session's file as a person reads it. Everything in it is foreign text."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from beige.cli.session_view import LineSplitter, SessionView
from beige.cli.terminal import Writer
from beige.messages.llm import SessionInfo
from services.llm.conversation import (
    Assistant,
    Attempt,
    Compaction,
    Context,
    Header,
    Hook,
    Image,
    Notice,
    Prompt,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolStart,
    TurnEnd,
    encode_entry,
)

AT = "2026-11-29T16:15:00.000Z"
CALLS = [ToolCall("1", "exec", {"command": "seq 3\nls"}), ToolCall("2", "read", invalid='{"pa')]
ENTRIES = [
    Header(v=1, id="s1", agent="travel", forked_from="s0"),
    Context(agents_md="Build with make."),
    Prompt(text="Count.", channel="cli"),
    Assistant(model="p/m", content=[Thinking("hm", "x"), Text("I count."), *CALLS], stop_reason="tool_use"),
    ToolStart(tool_id="1"),
    ToolResult(tool_id="1", tool="exec", content=[Text("1\n2\n3\n")], exit_code=2, duration_ms=1500),
    ToolResult(tool_id="2", tool="read", content=[Text("no"), Image("image/png", b"x")], is_error=True),
    Attempt(model="p/m", kind="overloaded", error="p/m: overloaded", text="I w"),
    Compaction(summary="It counted.\nTwice.", messages=4, reason="threshold"),
    Assistant(model="scripted/walk", content=[Text("Three")], stop_reason="cancelled", scripted=True),
    TurnEnd(outcome="cancelled"),
    Notice(text="7 bytes of a torn write were cut off here"),
]


def shown(lines: list[bytes], full: bool = False, info: SessionInfo | None = None) -> list[str]:
    out = io.StringIO()
    view = SessionView(Writer(out), full)
    for line in lines:
        view.line(line)
    if info is not None:
        view.end(info)
    return out.getvalue().splitlines()


def written(*entries: Any) -> list[bytes]:
    return [
        encode_entry(type(e)(**{f: getattr(e, f) for f in e.__struct_fields__} | {"ts": AT})) for e in entries
    ]


def test_everything_that_happened_is_told() -> None:
    assert shown(written(*ENTRIES)) == [
        "travel, session s1, begun 2026-11-29 16:15:00, copied from s0",
        "[the workspace's AGENTS.md is part of the system prompt]",
        "",
        "USER (2026-11-29 16:15:00, cli)",
        "| Count.",
        "",
        "p/m (2026-11-29 16:15:00)",
        "| I count.",
        "> exec seq 3 ...",
        '> read not readable: {"pa',
        "  exec done, exit code 2 (1.50 s)",
        "  | 1",
        "  | 2",
        "  | 3",
        "  read failed (0.00 s)",
        "  | no",
        "  | (image/png)",
        "[p/m: overloaded; what it had said is void]",
        "[the first 4 messages are summarised for the model:]",
        "  | It counted.",
        "  | Twice.",
        "",
        "scripted/walk, a script (2026-11-29 16:15:00)",
        "| Three",
        "[it stops here: cancelled]",
        "[the turn ended: cancelled]",
        "[7 bytes of a torn write were cut off here]",
    ]


def test_it_is_told_who_changed_or_refused_what() -> None:
    def hook(name: Any, state: Any, **more: str) -> Hook:
        return Hook(plugin="guard", hook=name, state=state, **more)

    found = shown(written(
        hook("prePrompt", "replaced", text="a\nb"),
        hook("postResponse", "replaced", text="c"),
        hook("prePrompt", "unchanged"),
        hook("prePrompt", "refused", reason="no cards"),
        hook("prePrompt", "skipped", reason="it died"),
        hook("postResponse", "failed", reason="it died"),
    ))  # fmt: skip
    assert found == [
        "[plugin 'guard' changed the prompt; the model got:]",
        "  | a",
        "  | b",
        "[plugin 'guard' changed the answer; the user got:]",
        "  | c",
        "[plugin 'guard' let the prompt pass]",
        "[plugin 'guard' refused the prompt: no cards]",
        "[plugin 'guard' was done without: it died]",
        "[plugin 'guard' failed: it died]",
    ]


def test_long_results_are_cut_unless_all_is_asked_for() -> None:
    entry = ToolResult(tool_id="1", tool="exec", content=[Text("line\n" * 100)])
    short = shown(written(entry))
    assert len(short) == 14 and short[-1] == "  ... 440 more characters: --full"
    assert len(shown(written(entry), full=True)) == 101
    assert "~ hm" in shown(written(*ENTRIES), full=True)


@pytest.mark.parametrize(
    ("outcome", "last"),
    [
        ("running", "[this turn is under way]"),
        ("interrupted", "[this turn was interrupted: its process ended]"),
        ("damaged", "[damaged: line 3]"),
    ],
)
def test_how_it_stands_is_told_at_the_end(outcome: str, last: str) -> None:
    info = SessionInfo(
        "s", "a", AT, AT, 1, 2, outcome=outcome, problem="line 3" if outcome == "damaged" else ""
    )
    assert shown([], info=info) == [last]


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"7", b'{"type":7}', b'{"type":"assistant","content":[7]}', b"[" * 9999, b"\xff\xfe"],
    ids=range(8),
)
def test_a_bad_line_is_shown_as_one_and_the_next_is_read(line: bytes) -> None:
    lines = shown([line, *written(Notice(text="next"))])
    assert lines[-1] == "[next]" and len(lines) <= 4


def test_a_type_of_a_newer_version_is_named() -> None:
    assert shown([b'{"type":"hologram","x":1}']) == ["[an entry of type 'hologram']"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_in_a_session_drives_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    evil = "a\x1b[2J\x1b]52;c;eA==\x07\r\x9b1mb\u202e"
    entries = [
        Header(v=1, id="s1", agent=evil),
        Prompt(text=evil, channel=evil),
        Assistant(
            model=evil, content=[Text(evil), ToolCall("1", evil, {"command": evil})], stop_reason="error"
        ),
        ToolResult(tool_id="1", tool=evil, content=[Text(evil)]),
        Attempt(model="m", kind="k", error=evil),
        Compaction(summary=evil, messages=1, reason="asked"),
        TurnEnd(outcome="failed", error=evil),
        Notice(text=evil),
    ]
    out = Terminal()
    view = SessionView(Writer(out), full=True)
    for line in [*written(*entries), json.dumps({"type": evil}).encode()]:
        view.line(line)
    assert not set(out.getvalue()) & set("\x1b\x07\r\x9b\u202e")
    assert out.getvalue().count("\\x1b[2J") >= 10


def test_lines_are_put_together_from_pieces() -> None:
    lines = LineSplitter()
    assert list(lines.feed(b"one\ntw")) == [b"one"]
    assert list(lines.feed(b"o")) == []
    assert list(lines.feed(b"\n\nthree")) == [b"two", b""]
