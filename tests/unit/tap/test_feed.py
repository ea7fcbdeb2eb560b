"""Copies completed: each message of a call is named, answers get their time, loss is counted."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige import wire
from beige.messages import encode
from beige.messages.tools import ToolCall
from beige.wire import Header, Outcome
from services.tap import correlate
from services.tap.correlate import Correlator
from services.tap.feed import Feed

MS = 1_000_000


def copy(n, direction, peer, header, body=None, size=0):
    return (n * MS, 10**18 + n * MS, direction, peer, wire.encode_header(header), size, body)


def batch(first, *records, dropped=0):
    return msgspec.msgpack.encode((first, dropped, records))


def to_worker(number, hop, **fields):
    return Header(
        type=wire.CALL, id=number, service="tools", method="call", agent="travel", session="s", hop=hop,
        src="bridge/0", call="0000000a-5", **fields,
    )  # fmt: skip


def test_a_call_is_followed_through_the_corridor():
    feed = Feed()
    message = batch(
        1,
        copy(
            0, "in", "bridge/0", Header(type=wire.CALL, id=3, service="tools", method="call", agent="travel")
        ),
        copy(1, "out", "policy/0", to_worker(5, wire.AUTHORIZE)),
        copy(3, "in", "policy/0", Header(type=wire.REPLY, id=5)),
        copy(4, "out", "tools/0", to_worker(5, wire.EXECUTE)),
        copy(5, "in", "tools/0", Header(type=wire.ITEM, id=5)),
        copy(9, "in", "tools/0", Header(type=wire.REPLY, id=5, outcome=Outcome(0, 2, "", 4.0))),
        copy(11, "out", "bridge/0", Header(type=wire.REPLY, id=3, call="0000000a-5")),
    )
    events = [event for _, event in feed.events(message)]
    assert [e.hop for e in events] == ["", "authorize", "authorize", "execute", "execute", "execute", ""]
    assert [e.call for e in events] == [""] + ["0000000a-5"] * 6
    assert {(e.agent, e.service, e.method) for e in events} == {("travel", "tools", "call")}
    assert [e.latency_ms for e in events] == [None, None, 2.0, None, None, 5.0, 11.0]
    assert (events[5].exit_code, events[5].output_bytes) == (0, 2)
    assert [e.seq for e in events] == [e.topic_seq for e in events] == list(range(1, 8))


def test_a_child_call_takes_its_agent_from_the_call_its_caller_serves():
    feed = Feed()
    prompt = Header(
        type=wire.CALL, id=7, service="llm", method="prompt", agent="travel", session="s", call="0000000a-7"
    )
    child = Header(
        type=wire.CALL, id=1, service="sandbox", method="exec", parent=7, call="forged", src="cli/0"
    )
    message = batch(1, copy(0, "out", "llm/0", prompt), copy(1, "in", "llm/0", child))
    (_, _), (topic, event) = feed.events(message)
    assert (topic, event.agent, event.session, event.parent) == ("travel", "travel", "s", "0000000a-7")
    assert (event.call, event.src) == ("", "llm/0")


@pytest.mark.parametrize("agent", ["", "+state", "+body"])
def test_nobody_can_publish_under_the_taps_own_topics(agent):
    header = Header(type=wire.CALL, id=1, service="llm", method="prompt", agent=agent)
    ((topic, _),) = Feed().events(batch(1, copy(0, "in", "cli/0", header)))
    assert topic == "-"


def test_ids_of_calls_made_and_served_are_not_mixed_up():
    correlator = Correlator()
    made = Header(type=wire.CALL, id=5, service="sandbox", method="exec")
    served = Header(type=wire.CALL, id=5, service="llm", method="prompt")
    correlator.place("in", "llm/0", made, 0)
    correlator.place("out", "llm/0", served, 0)
    for direction, flags, method in [("in", 0, "prompt"), ("out", wire.TO_WORKER, "prompt"),
                                     ("out", 0, "exec"), ("in", wire.TO_WORKER, "exec")]:  # fmt: skip
        for kind in (wire.ITEM, wire.CREDIT):
            known, _ = correlator.place(direction, "llm/0", Header(type=kind, id=5, flags=flags), 0)
            assert known.method == method
    assert correlator.place("in", "llm/0", Header(type=wire.CANCEL, id=5), 0)[0].method == "exec"
    assert correlator.place("out", "llm/0", Header(type=wire.CANCEL, id=5), 0)[0].method == "prompt"
    assert correlator.place("out", "llm/0", Header(type=wire.REPLY, id=5), 0)[0].method == "exec"
    assert correlator.place("in", "llm/0", Header(type=wire.ERR, id=5), 0)[0].method == "prompt"


def test_memory_is_bounded():
    correlator = Correlator()
    for n in range(correlate.MAX_CALLS + 10):
        correlator.place("in", "llm/0", Header(type=wire.CALL, id=n, method="m"), 0)
    assert correlator.place("in", "llm/0", Header(type=wire.CANCEL, id=9), 0)[0].method == ""
    assert correlator.place("in", "llm/0", Header(type=wire.CANCEL, id=10), 0)[0].method == "m"


def test_copies_the_broker_dropped_are_counted():
    feed = Feed()
    one = copy(0, "in", "cli/0", Header(type=wire.HB))
    list(feed.events(batch(101, one, one)))
    assert feed.lost == 0
    ((_, event),) = feed.events(batch(150, one, dropped=47))
    assert (feed.lost, event.lost) == (47, 47)
    feed.broker_restarted()
    list(feed.events(batch(1, one)))
    assert feed.lost == 47


def test_bodies_are_redacted():
    body = encode(ToolCall("kv", ["set", "canary"]))
    header = Header(type=wire.CALL, id=1, service="tools", method="call")
    ((_, event),) = Feed().events(batch(1, copy(0, "in", "bridge/0", header, body, len(body))))
    assert event.body == {"tool": "kv", "args": "set <2 items>"}
    assert event.size == len(body)


@given(st.binary(max_size=100))
def test_what_cannot_be_read_is_counted(raw):
    feed = Feed()
    hostile = (0, 0, "in", "x/0", raw, 0, raw)
    good = copy(1, "in", "cli/0", Header(type=wire.HB))
    events = list(feed.events(batch(1, hostile, good)))
    assert len(events) + feed.unreadable == 2
    list(feed.events(raw))
    assert feed.unreadable >= 1 or not raw
