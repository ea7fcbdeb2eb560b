"""What the log says about a call: the seed's names, bounded, one line whatever an agent sends."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.auditlog import MAX_LINE, decode_line, encode_line
from beige.errors import Malformed
from beige.messages import encode
from beige.messages.policy import LeaseRequest
from beige.messages.sandbox import ExecRequest, PatchRequest, ReadRequest, WriteRequest
from beige.messages.tools import HookCall, ToolCall
from beige.wire import Header, HookUse, ModelUse, Outcome
from services.audit import entry

TS = "2026-03-05T12:00:00.000Z"
DIGEST = bytes(range(32))


def header(service="sandbox", method="exec", **fields):
    defaults = {"agent": "travel", "session": "s1", "channel": "tui", "src": "llm/0", "call": "0000002a-7"}
    return Header(service=service, method=method, **{**defaults, **fields})


def line_of(record):
    return json.loads(encode_line(record))


def test_the_seeds_core_tool_example():
    opening = entry.started(header(), encode(ExecRequest("git commit trip:paris")), TS, DIGEST)
    record = entry.finished(opening, header(outcome=Outcome(0, 23, "", 45.0)), TS, 99.0)
    assert line_of(record) == {
        "ts": TS, "agent": "travel", "type": "core_tool", "tool": "exec",
        "args": ["git commit trip:paris"], "decision": "allowed",
        "durationMs": 45.0, "exitCode": 0, "outputBytes": 23,
        "phase": "finished", "id": "0000002a-7", "session": "s1", "channel": "tui", "src": "llm/0",
    }  # fmt: skip


def test_the_seeds_tool_example():
    call = header("tools", "call", src="bridge/0", parent_call="0000002a-7", call="0000002a-8")
    opening = entry.started(call, encode(ToolCall("git", ["set", "trip:paris"])), TS, DIGEST)
    assert line_of(opening) == {
        "ts": TS, "agent": "travel", "type": "tool", "tool": "git", "args": ["set", "trip:paris"],
        "decision": "allowed", "target": "gateway", "phase": "started", "id": "0000002a-8",
        "parent": "0000002a-7", "session": "s1", "channel": "tui", "src": "bridge/0",
        "digest": DIGEST.hex()[:32],
    }  # fmt: skip
    done = entry.finished(opening, header(outcome=Outcome(0, 2, "", 12.0, "sandbox")), TS, 0)
    assert done.target == "sandbox"
    assert done.tool == "git"
    assert done.digest == ""


def lease_call(**fields):
    return header("policy", "lease", parent_call="0000002a-6", **fields)


def test_a_model_call_and_what_it_came_to():
    body = encode(LeaseRequest("anthropic", "claude-x", 700))
    opening = entry.started(lease_call(), body, TS, DIGEST)
    use = ModelUse("answered", input_tokens=700, output_tokens=9, cost_nano=1_500_000)
    record = entry.finished(opening, lease_call(outcome=Outcome(duration_ms=45.0, model=use)), TS, 0)
    assert line_of(record) == {
        "ts": TS, "agent": "travel", "type": "model_call", "tool": "model", "args": ["anthropic/claude-x"],
        "decision": "allowed", "durationMs": 45.0, "phase": "finished", "id": "0000002a-7",
        "parent": "0000002a-6", "session": "s1", "channel": "tui", "src": "llm/0",
        "usage": {"input_tokens": 700, "output_tokens": 9}, "costUsd": 0.0015,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("use", "error", "decision", "told"),
    [
        (ModelUse("failed", "overloaded", 529, cost_nano=0), "overloaded (529)", "allowed", {"costUsd": 0.0}),
        (ModelUse("cooling", "rate_limited"), "cooling down after a rate limit", "allowed", {}),
        (ModelUse("denied", "over_budget"), "Budget exceeded: agent", "denied", {}),
        (None, "peer_lost: policy/0 died", "allowed", {}),
    ],
    ids=["failed", "cooling", "over budget", "nobody knows"],
)
def test_a_model_call_that_came_to_nothing_says_why(use, error, decision, told):
    opening = entry.started(lease_call(), encode(LeaseRequest("p", "m")), TS, DIGEST)
    line = line_of(entry.finished(opening, lease_call(outcome=Outcome(error=error, model=use)), TS, 1))
    assert (line["error"], line["decision"]) == (error, decision)
    assert (line.get("kind"), line.get("status")) == ((use.kind, use.status) if use else (None, None))
    assert {name: line[name] for name in ("costUsd", "usage") if name in line} == told


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Outcome(hook=HookUse("unchanged")), {"kind": "unchanged"}),
        (Outcome(output_bytes=3, hook=HookUse("replaced", "ab" * 32)),
         {"kind": "replaced", "outputBytes": 3, "textDigest": "ab" * 16}),
        (Outcome(error="refused: a card number", hook=HookUse("refused")),
         {"kind": "refused", "error": "refused: a card number"}),
        (Outcome(error="failed: plugin 'guard' failed (ValueError)"),
         {"error": "failed: plugin 'guard' failed (ValueError)"}),
    ],
    ids=["unchanged", "replaced", "refused", "failed"],
)  # fmt: skip
def test_a_hook_and_what_it_made_of_a_text_without_the_text(outcome, told):
    call = header("tools", "hook", parent_call="0000002a-6")
    opening = entry.started(call, encode(HookCall("guard", "prePrompt", "größe")), TS, DIGEST)
    names = {"type": "hook", "tool": "prePrompt", "args": ["guard"], "inputBytes": 7}
    digest = hashlib.sha256("größe".encode()).hexdigest()[:32]
    shown = line_of(opening)
    assert {name: shown[name] for name in (*names, "textDigest")} == names | {"textDigest": digest}
    line = line_of(entry.finished(opening, header("tools", "hook", outcome=outcome), TS, 1.0))
    common = {"ts", "agent", "decision", "durationMs", "phase", "id", "parent", "session", "channel", "src"}
    assert {name: value for name, value in line.items() if name not in common} == names | told
    assert "größe" not in str(line_of(opening))


def test_a_denial_is_one_finished_record_with_the_reason():
    call = header("tools", "call")
    record = entry.denied(call, encode(ToolCall("git", ["x"])), TS, DIGEST, "Permission denied: no")
    assert (record.phase, record.decision, record.error) == ("finished", "denied", "Permission denied: no")
    assert record.duration_ms is None


@pytest.mark.parametrize(
    ("method", "body", "args", "input_bytes"),
    [
        ("exec", ExecRequest("ls -l"), ["ls -l"], None),
        ("exec", ExecRequest(argv=["ls", "-l"]), ["ls", "-l"], None),
        ("exec", ExecRequest("cat", stdin=b"abc"), ["cat"], 3),
        ("read", ReadRequest("a b"), ["a b"], None),
        ("write", WriteRequest("f", content=b"secret text"), ["f"], 11),
        ("write", WriteRequest("f", content=b""), ["f"], 0),
        ("write", WriteRequest("f", size=50_000_000, sha256="00"), ["f"], 50_000_000),
        ("patch", PatchRequest("f", "old", "new"), ["f"], None),
    ],
)
def test_arguments_of_core_tools(method, body, args, input_bytes):
    record = entry.started(header(method=method), encode(body), TS, DIGEST)
    assert (record.tool, record.args, record.input_bytes) == (method, args, input_bytes)
    assert b"secret" not in encode_line(record)


@pytest.mark.parametrize(
    ("code", "outcome", "error"),
    [
        ("", Outcome(1, 5, "", 3.0), ""),
        ("", Outcome(1, 5, "no such key", 3.0), "no such key"),
        ("failed", Outcome(error="failed: container gone"), "failed: container gone"),
        ("failed", Outcome(error="container gone"), "failed: container gone"),
        ("peer_lost", None, "peer_lost"),
    ],
)
def test_errors_say_their_code_once(code, outcome, error):
    opening = entry.started(header(), encode(ExecRequest("true")), TS, DIGEST)
    record = entry.finished(opening, header(code=code, outcome=outcome), TS, 12.34567)
    assert record.error == error
    assert record.duration_ms == (outcome.duration_ms if outcome and outcome.duration_ms else 12.346)


def test_a_call_whose_start_is_unknown_still_gets_a_complete_line():
    record = entry.finished(entry.unopened(header("tools", "call"), TS), header(outcome=Outcome(0)), TS, 0.0)
    line = line_of(record)
    assert (line["type"], line["tool"], line["args"], line["agent"]) == ("tool", "unknown", [], "travel")


@pytest.mark.parametrize("method", ["ensure", "list", "nothing"])
def test_only_governed_methods_have_entries(method):
    with pytest.raises(Malformed):
        entry.started(header(method=method), b"\x80", TS, DIGEST)


def test_a_body_that_cannot_be_read_is_malformed():
    with pytest.raises(Malformed, match=r"sandbox\.exec"):
        entry.started(header(), b"\xc1", TS, DIGEST)


# --- whatever an agent sends ------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]))
NASTY = '\x00\x1b[31m\x7f\x85\x9b2J\u2028\u2029\u202e\u2066\ufeff\r\n"\\'


@given(st.lists(texts, max_size=20))
def test_short_arguments_come_back_exactly(args):
    record = entry.started(header("tools", "call"), encode(ToolCall("kv", args)), TS, DIGEST)
    assert json.loads(encode_line(record))["args"] == args
    assert decode_line(encode_line(record)[:-1]) == record


@given(st.lists(texts, max_size=20), st.text(NASTY, max_size=2000))
def test_line_holds_no_terminal_controls(args, nasty):
    record = entry.started(header("tools", "call"), encode(ToolCall("kv", [*args, nasty])), TS, DIGEST)
    line = encode_line(record)
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    assert all(char.isprintable() or ord(char) > 0x9F for char in line.decode()[:-1])
    assert not set(line.decode()[:-1]) & set("\x7f\x85\x9b\u2028\u2029\u202e\u2066\ufeff")


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "\x00", "é", "\u202e", "\U0001f600", '"']), st.integers(0, 60_000))
    ),
    st.integers(0, 4000),
)
def test_a_line_is_bounded_whatever_is_in_it(blocks, more):
    args = [char * count for char, count in blocks][:15] + [""] * more
    call = header("tools", "call", agent="\x00" * 256, session="\x00" * 256, channel="\x00" * 256)
    record = entry.started(call, encode(ToolCall("\x00" * 64, args[:4000])), TS, DIGEST)
    record.error = "\x00" * 512
    assert len(encode_line(record)) <= MAX_LINE


def test_what_is_cut_is_said():
    kept = entry.cut(["head", "x" * 100_000, "tail", "end"])
    assert kept[0] == "head"
    assert kept[1].startswith("x" * 30_000)
    assert kept[1].endswith("more characters cut]")
    assert kept[2] == "…[2 more arguments cut]"
    assert int(kept[1].split("…[")[1].split()[0]) + kept[1].index("…") == 100_000
    assert entry.cut(["a"] * 4000)[-1] == "a"
    assert entry.cut(["a" * 100] * 4000)[-1].startswith("…[")
