"""What is read: the stream of events, what was typed, and the session's file."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.errors import Malformed, TooLarge
from beige.tui.commands import ALIASES, COMMANDS, Command, Prompt, help_text, parse
from beige.tui.desk import Desk
from beige.tui.events import TurnEvent, before_last_turn, decode_event, replay, unfinished
from beige.tui.sse import MAX_EVENT, Decoder, ServerEvent

STREAM = (
    b": still here\n\n"
    b'id: ab-1\nevent: text_delta\ndata: {"kind":"text_delta"}\n\n'
    b"data:one\r\ndata: two\r\n\r\n"
    b"event: nothing\n\n"
    b"id: ab-3\nevent: result\nretry: 5\nodd\ndata: \xff\n\n"
)
EVENTS = [
    ServerEvent("ab-1", "text_delta", '{"kind":"text_delta"}'),
    ServerEvent("", "", "one\ntwo"),
    ServerEvent("ab-3", "result", "\ufffd"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_are_the_same_however_the_bytes_are_cut(cuts):
    decoder, found = Decoder(), []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(edges):
        found += decoder.feed(STREAM[start:end])
    assert found == EVENTS


@pytest.mark.parametrize("piece", [b"x" * 65536, b"data: " + b"x" * 65536 + b"\n"], ids=["line", "event"])
def test_an_event_that_never_ends_is_given_up(piece):
    decoder = Decoder()
    with pytest.raises(TooLarge, match=str(MAX_EVENT)):
        for _ in range(MAX_EVENT // len(piece) + 2):
            decoder.feed(piece)


def test_a_quiet_streams_heartbeats_fill_nothing():
    decoder = Decoder()
    beats = b": still here\n\n" * 4096
    for _ in range(2 * MAX_EVENT // len(beats)):
        assert decoder.feed(beats) == []


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", None),
        (" \n ", None),
        ("hello", Prompt("hello")),
        ("two\nlines", Prompt("two\nlines")),
        ("//etc is empty", Prompt("/etc is empty")),
        ("a /new", Prompt("a /new")),
        ("/new", Command("new")),
        (" /HELP ", Command("help")),
        ("/v on", Command("verbose", "on")),
        ("/verbose off", Command("verbose", "off")),
        ("/model a/b", Command("model", "a/b")),
        ("/model", Command("model")),
        ("/compact keep the names", Command("compact", "keep the names")),
        ("/export a b.md", Command("export", "a b.md")),
    ],
)
def test_what_was_typed(text, meant):
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/verbos on", "did you mean /verbose?"),
        ("/etc/passwd is empty", "write //"),
        ("/verbose", r"write /verbose on\|off"),
        ("/v maybe", r"write /verbose on\|off"),
        ("/new now", "takes nothing"),
        ("/", "/help"),
    ],
)
def test_a_wrong_command_is_never_sent_to_the_model_and_says_what_would_be_right(text, told):
    with pytest.raises(Malformed, match=told):
        parse(text)


def test_every_command_is_carried_out_and_explained():
    assert all(callable(getattr(Desk, f"_{name}")) for name in COMMANDS)
    assert set(ALIASES.values()) <= set(COMMANDS)
    assert all(f"/{name}" in help_text() for name in COMMANDS)


def test_an_event_of_a_newer_gateway_is_still_read():
    assert decode_event('{"kind":"new_kind","text":"x","novel":[1]}') == TurnEvent("new_kind", text="x")


FILE = [
    {"type": "session", "v": 1, "id": "s", "agent": "a"},
    {"type": "prompt", "text": "go"},
    {"type": "context", "agents_md": "x"},
    {
        "type": "assistant",
        "model": "p/m",
        "usage": {"input_tokens": 5},
        "cost_nano": 500_000_000,
        "content": [
            {"type": "thinking", "text": "hm"},
            {"type": "text", "text": "I look."},
            {"type": "tool_call", "id": "t1", "name": "exec", "args": {"command": "ls"}},
        ],
    },
    {"type": "tool_start", "tool_id": "t1"},
    {"type": "tool_result", "tool_id": "t1", "tool": "exec", "exit_code": 2, "duration_ms": 7.0,
     "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]},
    {"type": "attempt", "model": "p/m", "kind": "overloaded", "error": "p/m: overloaded"},
    {"type": "turn_end", "outcome": "cancelled"},
    {"type": "prompt", "text": "again"},
    {"type": "turn_end", "outcome": "answered"},
    {"type": "of a newer version"},
]  # fmt: skip


def test_a_sessions_file_tells_the_same_events_as_the_turn_did():
    assert replay(FILE) == [
        TurnEvent("prompt", text="go"),
        TurnEvent("thinking_delta", text="hm"),
        TurnEvent("text_delta", text="I look."),
        TurnEvent("message_end", model="p/m", usage={"input_tokens": 5}, cost=0.5),
        TurnEvent("tool_start", tool_id="t1", tool="exec", args={"command": "ls"}),
        TurnEvent("tool_end", tool_id="t1", tool="exec", text="a\nb", exit_code=2, duration_ms=7.0),
        TurnEvent("model_fallback", text="p/m: overloaded; another attempt followed", model="p/m"),
        TurnEvent("notice", text="this turn was cancelled"),
        TurnEvent("prompt", text="again"),
    ]


def test_a_turn_without_an_end_is_unfinished():
    assert unfinished(FILE[:5])
    assert not unfinished(FILE)
    assert not unfinished([])
    assert before_last_turn(FILE[:5]) == FILE[:2]
    assert before_last_turn(FILE[:1]) == FILE[:1]


def hooked(*hooks):
    said = [{"type": "text", "text": "a secret"}, {"type": "thinking", "text": "secret"}]
    calls = [{"type": "tool_call", "id": "1", "name": "exec", "args": {}}]
    return [{"type": "assistant", "model": "p/m", "content": said + calls}, *hooks]


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ([], ["a secret", "secret"]),
        (["unchanged"], ["a secret", "secret"]),
        (["replaced", "unchanged"], ["[hidden]"]),
        (["replaced", "refused"], [""]),
        (["failed"], [""]),
    ],
)
def test_what_a_hook_kept_from_the_reader_is_not_shown_when_a_session_is_read_again(states, shown):
    hooks = [
        {"type": "hook", "hook": "postResponse", "plugin": "guard", "state": state, "text": "[hidden]"}
        for state in states
    ]
    events = replay(hooked(*hooks))
    assert [event.text for event in events if event.kind.endswith("_delta")] == shown
    notices = [event.text for event in events if event.kind == "notice"]
    assert notices == ["plugin 'guard' changed the answer"] * states.count("replaced")
