"""What an operator sees of an event: one line, a drawing, a recording; and never control characters."""

import json
import os
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.cli.printable import printable
from beige.cli.tap_recording import Recorder, replay
from beige.cli.tap_sequence import LANES, WIDTH, Sequence, arrow
from beige.cli.tap_view import Filter, Loss, json_line, one_line
from beige.errors import Malformed
from beige.tapevent import TapEvent

MS = 1_000_000


def event(n=1, direction="in", peer="bridge/0", kind="CALL", **fields):
    return TapEvent(
        seq=n, topic_seq=n, wall_ns=1_700_000_000 * 10**9 + n * MS, mono_ns=n * MS, dir=direction, peer=peer,
        type=kind, **fields,
    )  # fmt: skip


NAMED = {"service": "tools", "method": "call", "agent": "travel", "session": "s1", "call": "0000000a-5"}


def test_one_line():
    line = one_line(event(1, "out", "policy/0", hop="authorize", size=31, **NAMED))
    assert line.split(maxsplit=1)[1].split() == (
        "bus → policy/0 CALL tools.call travel/s1 authorize 0000000a-5 31 B".split()
    )
    answer = one_line(event(kind="ERR", code="peer_lost", maybe=True, latency_ms=1.234, **NAMED))
    assert answer.endswith("0000000a-5  1.23 ms  peer_lost (may have been executed)")


texts = st.text(max_size=40)


@given(texts, texts, texts, texts)
def test_nothing_an_agent_says_controls_the_terminal(agent, session, method, error):
    shown = event(kind="REPLY", agent=agent, session=session, method=method, service="x", error=error,
                  body={"path": agent})  # fmt: skip
    assert one_line(shown).isprintable()
    shown.dir, shown.type, shown.call = "out", "CALL", session or "c"
    assert all(line.isprintable() for line in Sequence().lines(shown))
    assert json_line(shown).isprintable() or json.loads(json_line(shown))
    assert "\n" not in json_line(shown)
    assert "\x1b" not in json_line(shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain é 漢", "plain é 漢"), ("\x1b[2J", "\\x1b[2J"), ("a\nb\t", "a\\nb\\t"), ("\x9b", "\\x9b"),
     ("\u202eevil", "\\u202eevil"), ("\U000e0001", "\\U000e0001"), ("\u2028", "\\u2028")],
)  # fmt: skip
def test_printable(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (Filter(), True),
        (Filter(agent="travel", session="s1", service="tools", method="call"), True),
        (Filter(method="tools.call"), True),
        (Filter(agent="trave"), False),
        (Filter(session="s2"), False),
        (Filter(service="sandbox"), False),
        (Filter(method="exec"), False),
        (Filter(errors=True), False),
    ],
)
def test_filters(wanted, matches):
    assert wanted.matches(event(**NAMED)) == matches


def test_heartbeats_are_shown_only_when_asked_for():
    assert not Filter().matches(event(kind="HB"))
    assert Filter(heartbeats=True).matches(event(kind="HB"))
    assert Filter(errors=True).matches(event(kind="ERR"))


def test_the_corridor_is_drawn():
    drawing = Sequence()
    call = {**NAMED, "src": "bridge/0"}
    steps = [
        event(0, "in", kind="CALL", **{**NAMED, "call": ""}),
        event(1, "out", "policy/0", hop="authorize", **call),
        event(2, "in", "policy/0", "REPLY", hop="authorize", **call),
        event(3, "out", "audit/0", hop="started", **call),
        event(4, "in", "audit/0", "REPLY", hop="started", **call),
        event(5, "out", "tools/0", hop="execute", **call),
        event(6, "in", "tools/0", "ITEM", hop="execute", **call),
        event(7, "in", "tools/0", "REPLY", hop="execute", exit_code=0, **call),
        event(8, "out", "audit/0", hop="finished", **call),
        event(9, "in", "audit/0", "REPLY", hop="finished", **call),
        event(10, "out", "bridge/0", "REPLY", **call),
    ]
    lines = [line for step in steps for line in drawing.lines(step)]
    assert [line[30:] for line in lines] == [
        "├──────────▶                                    authorize  policy/0  tools.call  travel"
        "  from bridge/0",
        "            ├──────────▶                        started    audit/0  +2.00 ms",
        "                        ├──────────▶            execute    tools/0  +2.00 ms",
        "                        ◀──────────┤            finished   audit/0  +3.00 ms  (exit 0)",
        "◀──────────────────────┤                        REPLY      bridge/0  ok  1 items  9.00 ms in all"
        "  +2.00 ms",
    ]
    assert all("0000000a-5" in line[:30] for line in lines)


def test_a_call_first_seen_in_the_middle_is_left_out():
    assert Sequence().lines(event(1, "in", "tools/0", "REPLY", **NAMED)) == []
    assert Sequence().lines(event(1, "out", "bridge/0", "REPLY", **NAMED)) == []


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("end", range(4))
def test_arrows_are_as_wide_as_the_lanes(start, end):
    assert len(arrow(start, end)) == len(LANES) * WIDTH


def test_loss_is_counted_per_topic_and_before_the_tap():
    loss = Loss()
    base = [("a", 5, 3), ("b", 1, 3), ("a", 6, 3), ("b", 4, 3), ("a", 7, 10), ("a", 1, 10), ("a", 2, 10)]
    told = []
    for topic, number, lost in base:
        shown = event(number)
        shown.lost = lost
        told.append(loss.note(topic.encode(), shown))
    assert told == [0, 0, 0, 2, 7, 0, 0]
    assert (loss.own, loss.before_tap, loss.total) == (2, 7, 9)


# --- recordings -----------------------------------------------------------------------------------


def recorded(path, events):
    recorder = Recorder(path)
    for one in events:
        recorder.write(one)
    recorder.close()


def test_a_recording_comes_back_exactly(tmp_path):
    events = [event(n, body={"path": "x" * n, "usage": {"a": 1}}, **NAMED) for n in range(1, 2000)]
    recorded(tmp_path / "r", events)
    assert list(replay(tmp_path / "r")) == events
    assert os.stat(tmp_path / "r").st_mode & 0o777 == 0o600


def test_a_recording_is_never_overwritten(tmp_path):
    recorded(tmp_path / "r", [])
    with pytest.raises(FileExistsError):
        Recorder(tmp_path / "r")


def test_a_torn_recording_is_read_up_to_the_tear(tmp_path):
    events = [event(n, **NAMED) for n in range(1, 100)]
    recorded(tmp_path / "r", events)
    data = (tmp_path / "r").read_bytes()
    (tmp_path / "r").write_bytes(data[:-5])
    assert list(replay(tmp_path / "r")) == events[:-1]


PREAMBLE = msgpack.packb({"kind": "beige-tap", "version": 1, "created": 0})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a recording",
        msgpack.packb({"kind": "other"}),
        msgpack.packb({"kind": "beige-tap", "version": 2}),
        PREAMBLE + b"\xc1",
        PREAMBLE + msgpack.packb({"seq": "x"}),
        PREAMBLE + msgpack.packb([1]),
        PREAMBLE + b"\xdd\xff\xff\xff\xff",
        PREAMBLE + b"\xdb\x7f\xff\xff\xff" + b"x" * 1_000_000,
        PREAMBLE + b"\xc6\x7f\xff\xff\xff" + b"x" * 1_000_000,
        PREAMBLE + b"\x91" * 100_000,
        PREAMBLE + b"\x81\xa1a" * 50_000,
        PREAMBLE + msgpack.packb(msgpack.ExtType(5, b"x")),
        PREAMBLE + b"\xa1\xff",
    ],
    ids=["empty", "text", "kind", "version", "invalid", "type", "array", "huge-array", "huge-string",
         "huge-bin", "deep-array", "deep-map", "ext", "utf8"],
)  # fmt: skip
def test_a_file_that_is_no_recording_is_refused(tmp_path, data):
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(Malformed):
        list(replay(tmp_path / "r"))


@given(st.binary(max_size=300))
def test_hostile_files_raise_nothing_but_malformed(tmp_path_factory, data):
    path: Path = tmp_path_factory.mktemp("tap") / "r"
    path.write_bytes(PREAMBLE + data)
    try:
        list(replay(path))
    except Malformed:
        pass
