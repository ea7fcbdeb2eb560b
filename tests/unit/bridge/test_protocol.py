"""The agents' protocol as bytes: the seed's shapes, any chunking, and nothing hostile that gets through."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from beige import errors
from beige.errors import BeigeError, Denied, Malformed, PeerLost, Unavailable
from beige.messages.tools import ToolResult
from socket_bridge import protocol
from socket_bridge.protocol import MAX_LINE, TOO_LONG, Line, Lines, error_line, parse, result_line


def request(**fields: Any) -> bytes:
    return json.dumps({"type": "tool_request", "tool": "git", "args": ["status"]} | fields).encode()


def cut(data: bytes, size: int, limit: int = MAX_LINE) -> list[Line]:
    lines = Lines(limit)
    found: list[Line] = []
    for start in range(0, len(data), size):
        lines.feed(data[start : start + size])
        while (line := lines.next()) is not None:
            found.append(line)
    return found


def test_the_seeds_answers_byte_for_byte() -> None:
    assert result_line(ToolResult(True, "OK")) == (
        b'{"type":"tool_response","success":true,"output":"OK","exitCode":0}\n'
    )
    denied = Denied("Permission denied: tool 'git' not allowed for agent 'travel'")
    assert error_line(denied) == (
        b'{"type":"tool_response","success":false,'
        b'"error":"Permission denied: tool \'git\' not allowed for agent \'travel\'","exitCode":1}\n'
    )


def test_the_seeds_request() -> None:
    parsed = parse(b'{"type": "tool_request", "tool": "git", "args": ["set", "mykey", "myvalue"]}')
    assert (parsed.tool, parsed.args) == ("git", ["set", "mykey", "myvalue"])


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        pytest.param(ToolResult(True, ""), {"success": True, "output": "", "exitCode": 0}, id="silent"),
        pytest.param(ToolResult(True, "", "x", 5), {"success": True, "output": "", "exitCode": 0}, id="0"),
        pytest.param(
            ToolResult(False, "", "no", 3), {"success": False, "error": "no", "exitCode": 3}, id="3"
        ),
        pytest.param(ToolResult(False, "", "no"), {"success": False, "error": "no", "exitCode": 1}, id="1"),
        pytest.param(
            ToolResult(False, "half", "no", 3),
            {"success": False, "output": "half", "error": "no", "exitCode": 3},
            id="output-of-a-failure",
        ),
    ],
)
def test_results(result: ToolResult, answer: dict[str, Any]) -> None:
    assert json.loads(result_line(result)) == {"type": "tool_response"} | answer


@pytest.mark.parametrize("number", ["a", "", 0, -5, None, 2**53])
def test_an_id_is_echoed(number: Any) -> None:
    parsed = parse(request(id=number))
    assert json.loads(result_line(ToolResult(True), parsed.id))["id"] == number
    assert json.loads(error_line(Denied("no"), parsed.id))["id"] == number


def test_without_an_id_none_is_sent() -> None:
    assert "id" not in json.loads(result_line(ToolResult(True), parse(request()).id))


@pytest.mark.parametrize("claim", ["other", None, 5, ["x"], {"agent": "other", "sessionKey": "s"}])
@pytest.mark.parametrize("field", ["agent", "session", "sessionContext", "channel"])
def test_a_claimed_identity_is_ignored(field: str, claim: Any) -> None:
    parsed = parse(request(**{field: claim}))
    assert (parsed.tool, parsed.args, parsed.cwd, parsed.token) == ("git", ["status"], "", "")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"", "Input data was truncated"),
        (b"   ", "Input data was truncated"),
        (b"hello", "JSON is malformed"),
        (b"{", "Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b"null", "Expected `object`, got `null`"),
        (b"{}", "missing required field `type`"),
        (request()[:-1], "Input data was truncated"),
        (request() + b"{}", "trailing characters"),
        (request(type="tool_response"), "Invalid enum value 'tool_response' - at `$.type`"),
        (b'{"type":"tool_request"}', "missing required field `tool`"),
        (request(tool=5), "Expected `str`, got `int` - at `$.tool`"),
        (request(tool=""), "length >= 1 - at `$.tool`"),
        (request(tool="x" * 65), "length <= 64 - at `$.tool`"),
        (request(args="status"), "Expected `array`, got `str` - at `$.args`"),
        (request(args=[["x"]]), "Expected `str`, got `array` - at `$.args[0]`"),
        (request(args=[""] * 4001), "length <= 4000 - at `$.args`"),
        (request(argz=[]), "unknown field `argz`"),
        (request(token=5), "at `$.token`"),
        (request(token="x" * 257), "at `$.token`"),
        (request(cwd="x" * 4097), "at `$.cwd`"),
        (request(id=[]), "at `$.id`"),
        (request(id="x" * 257), "at `$.id`"),
        (request(id=2**70), "at `$.id`"),
        (b'{"type":"tool_request","tool":"\xff"}', "Invalid UTF-8"),
        (b'{"type":"tool_request","tool":"\\ud800 and more"}', "surrogate"),
        (b'{"agent":' + b"[" * 100_000, "recursion"),
    ],
    ids=range(27),
)
def test_a_malformed_request_says_what_is_wrong(line: bytes, problem: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse(line)
    assert problem in str(caught.value)
    assert json.loads(error_line(caught.value))["exitCode"] == 2


@given(st.binary(max_size=300))
@example(b'{"type":"tool_request","tool":"\\udc80x"}')
def test_any_bytes_are_a_request_or_malformed(line: bytes) -> None:
    try:
        parsed = parse(line)
    except Malformed as error:
        answer = json.loads(error_line(error))
        assert (answer["type"], answer["success"]) == ("tool_response", False)
        return
    assert parsed.tool.encode()


@given(
    st.text(st.characters(exclude_categories=[]), max_size=200), st.lists(st.text(max_size=20), max_size=5)
)
def test_any_text_crosses_both_ways(output: str, args: list[str]) -> None:
    assert parse(request(args=args)).args == args
    clean = output.encode(errors="replace").decode()
    line = result_line(ToolResult(True, clean))
    assert line.count(b"\n") == 1
    assert json.loads(line)["output"] == clean


@pytest.mark.parametrize("size", range(1, 40))
def test_lines_survive_any_chunking(size: int) -> None:
    data = request() + b"\n" + b"\n" + b"garbage\r\n" + request(id=1) + b"\n" + b"half a line"
    assert cut(data, size) == [request(), b"", b"garbage\r", request(id=1)]


@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=8), st.integers(1, 30))
def test_a_long_line_is_reported_once_and_skipped(parts: list[bytes], size: int) -> None:
    data = b"".join(part + b"\n" for part in parts)
    assert cut(data, size, limit=8) == [part if len(part) <= 8 else TOO_LONG for part in parts]


@pytest.mark.parametrize("size", [1000, 65536, MAX_LINE + 10, 3 * MAX_LINE])
def test_the_limit_is_exact_and_memory_bounded(size: int) -> None:
    longest = b"x" * MAX_LINE
    assert cut(longest + b"\n" + longest + b"x\n" + b"ok\n", size) == [longest, TOO_LONG, b"ok"]
    lines = Lines()
    for _ in range(64):
        lines.feed(b"x" * 65536)
        lines.next()
        assert lines.size <= MAX_LINE + 65536


@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
def test_every_error_has_an_exit_code_that_is_no_success(code: str) -> None:
    answer = json.loads(error_line(errors.BY_CODE[code]("why")))
    assert answer["exitCode"] == protocol.EXIT_CODES[code]
    assert 0 < answer["exitCode"] < 128
    assert answer["error"].startswith("why")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PeerLost("gone"), "gone (the tool may have run)"),
        (PeerLost("gone", executed="no"), "gone (the tool did not run)"),
        (Unavailable("nobody"), "nobody"),
    ],
)
def test_an_error_of_the_way_says_whether_the_tool_ran(error: BeigeError, text: str) -> None:
    assert json.loads(error_line(error))["error"] == text


def test_requests_fit_the_bus(size: int = MAX_LINE) -> None:
    """What is a valid line is never too large for a bus body."""
    base = len(request(args=[])) + 2
    for args in (["x" * ((size - base) // 2 - 2)] * 2, ["x" * 252] * 3900):
        line = request(args=args)[:size]
        body = protocol.parse(line)
        assert len(msgspec.msgpack.encode([body.tool, body.args])) < MAX_LINE
