"""Threat: a client of the HTTP API plays with HTTP itself, or with the names in a path.

A real gateway of a real house, spoken to over raw sockets where a client library would be too polite.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.attacks.http_stage import Answer, ask, opened_api, raw, request, still_serves


@pytest.fixture(scope="module")
def stage():
    with opened_api() as stage:
        yield stage


@pytest.fixture(autouse=True)
def control(stage):
    yield
    still_serves(stage)


# --- names --------------------------------------------------------------------------------------------

NO_NAMES = [
    "..", "../x", "..%2fx", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc", "%252e%252e", "x%00", "%00", "x%0a", "Travel",
    "trav%65l%2f..", "tr%C3%A4vel", "travel%20", "%ff", "travel%E2%80%AE", ".", "-x", "x" * 33, "*", "%2A",
    "$agent",
]  # fmt: skip


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_that_are_no_names_are_refused(stage, name):
    for path in (f"/api/agents/{name}/models", f"/api/agents/{name}/sessions/s/history"):
        answer = ask(stage, f"GET {path} HTTP/1.1")
        assert answer.status in (400, 404), (path, answer.raw)
        assert answer.code in ("malformed", "not_found")
    for session in (name,) if name not in ("Travel", "-x", "x" * 33) else ():
        answer = ask(stage, f"GET /api/agents/travel/sessions/{session}/history HTTP/1.1")
        assert answer.status in (400, 404), (session, answer.raw)
    assert ask(stage, "GET /api/agents/tr%61vel/models HTTP/1.1").status == 200, (
        "control: a plain name, encoded"
    )


def test_a_session_can_not_leave_its_directory(stage):
    outside = stage.home.sessions / "escaped.jsonl"
    with stage.client() as client:
        for session in ("../escaped", "..", "a/../../escaped", "/tmp/x", "\0", "a\nb", "x" * 129):
            answer = client.post("/api/agents/travel/prompt", json={"text": "go", "session": session})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed")
        fine = client.post("/api/agents/travel/prompt", json={"text": "go", "session": "within"})
        assert fine.status_code == 200, "control"
    assert not outside.exists()
    assert (stage.home.sessions / "travel" / "within.jsonl").exists(), "control"


# --- HTTP itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
         "Sec-WebSocket-Version: 13"],
        ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"],
        ["Connection: Upgrade", "Upgrade: TLS/1.0"],
    ],
    ids=["websocket", "h2c", "tls"],
)  # fmt: skip
def test_upgrades_are_ignored(stage, headers):
    """Neither is there another protocol, nor a way around the token."""
    line = "GET /api/agents HTTP/1.1"
    assert ask(stage, line, *headers, token="").status == 401
    with_token = ask(stage, line, *headers)
    assert with_token.status == 200, "control: an ordinary answer"
    assert b"upgrade" not in with_token.head


SMUGGLED = b"GET /api/config HTTP/1.1\r\nHost: localhost\r\nX: "


@pytest.mark.parametrize(
    "framing",
    [
        ["Content-Length: 3", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 3"],
        ["Content-Length: 3", "Content-Length: 60"],
        ["Content-Length: 3, 60"],
        ["Content-Length: +3"], ["Content-Length: -1"], ["Content-Length: 0x3"], ["Content-Length: 3 3"],
        ["Content-Length : 3"],
        ["Content-Length: 99999999999999999999999"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
        ["Transfer-Encoding: chunked, identity"], ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding : chunked"],
        ["Transfer-Encoding:\x0bchunked"], ["X: y\r\n Transfer-Encoding: chunked", "Content-Length: 3",
                                            "Transfer-Encoding: chunked"],
        ["X: y\nTransfer-Encoding: chunked", "Content-Length: 3"],
        ["X: \0"], ["X"], [": y"],
    ],
)  # fmt: skip
def test_two_framings_of_one_body_are_refused(stage, framing):
    """Refused, and the connection closed: what follows is never taken for a request of its own."""
    data = request(
        stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json", *framing
    )
    got = raw(stage, data.replace(b"Connection: close\r\n", b"") + b"0\r\n\r\n" + SMUGGLED)
    assert Answer(got).status in (400, 413, 501), got
    assert got.count(b"HTTP/1.1 ") == 1, "one answer, to the first request"


@pytest.mark.parametrize(
    "chunks",
    [b"3\nabc\r\n0\r\n\r\n", b"zz\r\nabc\r\n", b"-1\r\n", b"0x3\r\nabc\r\n0\r\n\r\n", b"3\r\nabcX0\r\n\r\n",
     b"1000000000000000000000\r\n", b"3;" + b"a" * 100_000 + b"\r\nabc\r\n0\r\n\r\n"],
)  # fmt: skip
def test_odd_chunks_are_refused(stage, chunks):
    data = request(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json",
                   "Transfer-Encoding: chunked")  # fmt: skip
    got = raw(stage, data + chunks)
    assert Answer(got).status in (0, 400), got
    assert got.count(b"HTTP/1.1 ") <= 1
    fine = Answer(raw(stage, data + b"2\r\n{}\r\n0\r\n\r\n"))
    assert fine.status == 400 and fine.code == "malformed", "control: sound chunks reach the API"


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0" * 1000,
     b"GET\r\n\r\n",
     b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 1000, b"HELO x\r\n", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["tls", "http2", "zeros", "no-target", "version", "blank", "smtp", "no-host"],
)  # fmt: skip
def test_what_is_no_http_is_refused(stage, data):
    assert Answer(raw(stage, data)).status in (0, 400, 408)


@pytest.mark.parametrize(
    "target", ["http://evil.example.org/api/agents", "localhost:22", "*", "/api/agents#x", "//x/y"]
)
def test_other_forms_of_targets_lead_nowhere(stage, target):
    for method in ("GET", "CONNECT", "OPTIONS"):
        assert ask(stage, f"{method} {target} HTTP/1.1").status in (400, 404, 405)


def test_http_1_0_needs_the_same(stage):
    line = "GET /api/agents HTTP/1.0"
    assert ask(stage, line, token="").status == 401
    assert ask(stage, line, host=None).status == 421
    assert ask(stage, line).status == 200, "control"


def test_pipelined_requests_are_each_checked(stage):
    """In one packet: good, none, wrong, good. Each answer to its own request, in order."""
    good = request(stage).replace(b"Connection: close\r\n", b"")
    none = request(stage, token="").replace(b"Connection: close\r\n", b"")
    wrong = request(stage, token="x").replace(b"Connection: close\r\n", b"")
    got = raw(stage, good + none + wrong + request(stage))
    assert [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", got)] == [200, 401, 401, 200]


def test_a_token_is_not_remembered_by_its_connection(stage):
    with stage.client() as client:
        assert client.get("/api/agents").status_code == 200
        assert client.get("/api/agents", headers={"authorization": ""}).status_code == 401


def test_proxy_headers_change_nothing(stage):
    headers = ["X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: localhost",
               "Forwarded: for=127.0.0.1;host=localhost",
               "X-Original-URL: /api/health", "X-HTTP-Method-Override: GET", "X-Real-IP: ::1"]  # fmt: skip
    assert ask(stage, "GET /api/agents HTTP/1.1", *headers, token="").status == 401
    assert ask(stage, "GET /api/agents HTTP/1.1", *headers, host="evil.org").status == 421
    assert ask(stage, "GET /api/agents HTTP/1.1", *headers).status == 200, "control"


def test_answers_can_not_be_read_as_something_else(stage):
    """No answer may be stored, sniffed or framed into a page; none repeats what was sent."""
    answer = ask(stage, "GET /<script>alert(1)</script> HTTP/1.1")
    assert b"content-type: application/json" in answer.head
    assert b"x-content-type-options: nosniff" in answer.head
    assert b"cache-control: no-store" in answer.head
    assert b"<script>" not in answer.raw


def test_many_strangers_at_once_are_all_refused(stage):
    async def main():
        async def stranger(n):
            reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
            writer.write(request(stage, token=f"guess{n}"))
            answer = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            return answer[9:12]

        return [await asyncio.gather(*(stranger(n) for n in range(30))) for _ in range(5)]

    assert {status for batch in asyncio.run(main()) for status in batch} == {b"401"}
