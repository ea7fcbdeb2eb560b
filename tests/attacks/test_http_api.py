"""Threat: whoever reaches the HTTP API without being asked in: a web page, a program of another user on a
network, a holder of a small token, a client that abuses HTTP itself.

A real gateway of a real house, spoken to over raw sockets where a client library would be too polite.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from beige import tokens
from tests.processes.gateway_stage import new_stage, until

PATHS = [
    ("GET", "/api/status"), ("GET", "/api/config"), ("POST", "/api/gateway/restart"), ("GET", "/api/agents"),
    ("GET", "/api/openapi.json"), ("GET", "/api/agents/travel/models"),
    ("GET", "/api/agents/travel/sessions"),
    ("POST", "/api/agents/travel/prompt"), ("POST", "/api/agents/travel/exec"), ("GET", "/nowhere"),
    ("GET", "/api/agents/nobody/models"), ("OPTIONS", "/api/agents"), ("TRACE", "/api/agents"), ("GET", "//"),
    ("GET", "/api/health/"), ("GET", "/api/health/../agents"), ("GET", "/API/HEALTH"),
    ("GET", "/api/health;x"),
]  # fmt: skip
GOOD = "good"
RESTART = "/api/gateway/restart"


@pytest.fixture(scope="module")
def stage():
    with new_stage(cors=["https://app.example.org"], maxConnections=60, readTimeoutS=3) as stage:
        stage.start()
        yield stage
        log = stage.house.log("gateway").splitlines()
        assert [line[-2000:] for line in log if "Traceback" in line] == [], "an attack found an error"


@pytest.fixture(autouse=True)
def still_serves(stage):
    """The control of every test: afterwards a well-behaved client is served."""
    yield
    with stage.client() as client:
        assert client.get("/api/agents").status_code == 200


class Answer:
    """What came back on a raw connection, up to its end or to `until`."""

    def __init__(self, raw):
        self.raw = raw
        head, _, self.body = raw.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        self.status = int(found[1]) if found else 0
        self.head = head.lower()

    @property
    def code(self):
        return json.loads(self.body)["error"]["code"]


def raw(stage, data, *, deadline_s=60.0):
    """Send bytes as they are; everything that comes back until the gateway closes the connection."""
    with socket.create_connection(("127.0.0.1", stage.port), timeout=deadline_s) as connection:
        try:
            connection.sendall(data)
        except OSError:
            pass  # it has refused already; why, is read below
        got = b""
        try:
            while piece := connection.recv(65536):
                got += piece
        except ConnectionResetError:
            pass
        return got


def request(stage, line="GET /api/agents HTTP/1.1", *headers, body=b"", token=GOOD, host="localhost"):
    head = [line, *([f"Host: {host}"] if host is not None else []), *headers, "Connection: close"]
    if token:
        head.append(f"Authorization: Bearer {stage.token if token == GOOD else token}")
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def ask(stage, *more, **options):
    return Answer(raw(stage, request(stage, *more, **options)))


# --- tokens -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_without_a_token_nothing_is_served(stage, method, path):
    refused = ask(stage, f"{method} {path} HTTP/1.1", token="")
    assert refused.status == 401
    assert b'www-authenticate: bearer realm="beige"' in refused.head
    assert method == "HEAD" or refused.code == "unauthorized"
    if path != RESTART:
        assert ask(stage, f"{method} {path} HTTP/1.1").status != 401, "control: with one it is"


def test_health_needs_none_and_says_little(stage):
    answer = ask(stage, "GET /api/health HTTP/1.1", token="")
    assert answer.status == 200
    assert set(json.loads(answer.body)) == {"ok", "version", "problem"}


def test_wrong_tokens_are_refused(stage):
    good = stage.token
    for wrong in (
        good[:-1],
        good + "x",
        good.swapcase(),
        "x",
        tokens.digest_of(good),
        "beige_",
        good[1:],
        "*",
    ):
        assert ask(stage, token=wrong).status == 401
    for header in (
        "Basic Og==",
        f"Basic {good}",
        good,
        f"Bearer  x{good}",
        f"Bearer {good},{good}",
        "Bearer \xff",
    ):
        assert ask(stage, "GET /api/agents HTTP/1.1", f"Authorization: {header}", token="").status == 401
    assert ask(stage, token=good).status == 200, "control"


def test_a_token_counts_in_its_header_alone(stage):
    for line in (
        f"GET /api/agents?token={stage.token} HTTP/1.1",
        f"GET /api/agents?access_token={stage.token} HTTP/1.1",
    ):
        assert ask(stage, line, token="").status == 401
    assert ask(stage, "GET /api/agents HTTP/1.1", f"Cookie: token={stage.token}", token="").status == 401


def test_a_revoked_token_is_refused(stage):
    secret = stage.new_token("revoked")
    assert ask(stage, token=secret).status == 200, "control"
    tokens.revoke(stage.home, "revoked")
    assert ask(stage, token=secret).status == 401


def test_an_expired_token_is_refused(stage):
    now = datetime.now(UTC)
    over = stage.new_token("over", expires=now - timedelta(seconds=1))
    assert ask(stage, token=over).status == 401
    lasting = stage.new_token("lasting", expires=now + timedelta(hours=1))
    assert ask(stage, token=lasting).status == 200, "control"


NEEDS = {
    ("GET", "/api/status"): {"read", "admin"},
    ("GET", "/api/config"): {"admin"},
    ("GET", "/api/agents/travel/models"): {"read", "prompt"},
    ("GET", "/api/agents/travel/sessions"): {"read", "prompt"},
    ("GET", "/api/agents/travel/sessions/x"): {"read", "prompt"},
    ("GET", "/api/agents/travel/sessions/x/history"): {"read", "prompt"},
    ("GET", "/api/agents/travel/sessions/x/events"): {"read", "prompt"},
    ("GET", "/api/agents/travel/sessions/x/settings"): {"read", "prompt"},
    ("POST", "/api/agents/travel/sessions"): {"prompt"},
    ("DELETE", "/api/agents/travel/sessions/x"): {"prompt"},
    ("PATCH", "/api/agents/travel/sessions/x/settings"): {"prompt"},
    ("POST", "/api/agents/travel/sessions/x/cancel"): {"prompt"},
    ("POST", "/api/agents/travel/sessions/x/fork"): {"prompt"},
    ("POST", "/api/agents/travel/sessions/x/compact"): {"prompt"},
    ("POST", "/api/agents/travel/prompt"): {"prompt"},
    ("POST", "/api/agents/travel/exec"): {"exec"},
    ("POST", RESTART): {"admin"},
    ("POST", "/api/chat/stream"): {"prompt"},
    ("GET", "/api/audit"): {"read"},
}


@pytest.mark.parametrize("scope", tokens.SCOPES)
def test_a_scope_opens_its_own_paths_alone(stage, scope):
    """Each path, with an empty body: what gets past the scope fails there, and changes nothing."""
    secret = stage.new_token(f"only-{scope}", scopes=(scope,))
    with stage.client(secret) as client:
        for (method, path), scopes in NEEDS.items():
            if path == RESTART and scope == "admin":
                continue
            answer = client.request(method, path)
            assert (answer.status_code != 403) == (scope in scopes), (method, path, answer.text)


def test_every_path_is_in_that_table(stage):
    with stage.client() as client:
        paths = client.get("/api/openapi.json").json()["paths"]
    listed = {
        (m.upper(), p.format(agent="travel", session="x")) for p, methods in paths.items() for m in methods
    }
    free = {("GET", "/api/health"), ("GET", "/api/openapi.json"), ("GET", "/api/agents")}
    assert {entry for entry in listed if entry[1].startswith("/api/")} == set(NEEDS) | free


def test_a_token_for_one_agent_says_nothing_about_others(stage):
    secret = stage.new_token("travel-only", agents=("travel",))
    with stage.client(secret) as client:
        refused = {name: client.get(f"/api/agents/{name}/models") for name in ("slow", "nobody")}
        assert {answer.status_code for answer in refused.values()} == {403}
        assert len({answer.text for answer in refused.values()}) == 1, "neither tells whether it exists"
        assert client.post("/api/agents/slow/prompt", json={"text": "go"}).status_code == 403
        assert client.post("/api/agents/slow/exec", json={"tool": "exec", "params": {}}).status_code == 403
        assert client.get("/api/agents/travel/models").status_code == 200, "control"


# --- web pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.org",
        "localhost.evil.example.org",
        "127.0.0.1.evil.org",
        "",
        "[::2]",
        "evil.org:7433",
        None,
    ],
)
def test_a_wrong_host_is_refused(stage, host):
    """DNS rebinding: also health, also with a good token."""
    for path in ("/api/health", "/api/agents"):
        answer = ask(stage, f"GET {path} HTTP/1.1", host=host)
        assert answer.status == (400 if host is None else 421)
    assert ask(stage, host=f"LOCALHOST:{stage.port}").status == 200, "control"


@pytest.mark.parametrize(
    "origin", ["https://evil.example.org", "null", "http://localhost:7433", "file://", "*"]
)
def test_a_foreign_origin_is_refused(stage, origin):
    for line in (
        "GET /api/health HTTP/1.1",
        "GET /api/agents HTTP/1.1",
        "POST /api/agents/travel/prompt HTTP/1.1",
    ):
        answer = ask(stage, line, f"Origin: {origin}")
        assert answer.status == 403
        assert b"access-control" not in answer.head
    allowed = ask(stage, "GET /api/agents HTTP/1.1", "Origin: https://app.example.org")
    assert allowed.status == 200, "control"
    assert b"access-control-allow-origin: https://app.example.org" in allowed.head


def test_a_preflight_is_answered_for_allowed_origins_alone(stage):
    ask_for = ("OPTIONS /api/agents/travel/prompt HTTP/1.1", "Access-Control-Request-Method: POST")
    refused = ask(stage, *ask_for, "Origin: https://evil.example.org", token="")
    assert refused.status == 403
    assert b"access-control" not in refused.head
    assert ask(stage, *ask_for, token="").status == 401, "without an Origin it is no preflight"
    allowed = ask(stage, *ask_for, "Origin: https://app.example.org", token="")
    assert (allowed.status, allowed.body) == (204, b""), "control"
    assert b"access-control-allow-credentials" not in allowed.head
    assert b"access-control-allow-headers" not in allowed.head


@pytest.mark.parametrize("wanted", ["authorization, content-type", "Authorization,X-Stainless-Arch"])
def test_a_preflight_allows_the_headers_that_clients_add(stage, wanted):
    answer = preflight(stage, wanted)
    assert f"access-control-allow-headers: {wanted}".lower().encode() in answer.head.lower()


@pytest.mark.parametrize("wanted", ["*", "a b", "a,", "a\x00b", "a;b", "ä"])
def test_what_is_no_list_of_headers_is_not_repeated(stage, wanted):
    assert b"access-control-allow-headers" not in preflight(stage, wanted).head


def preflight(stage, wanted):
    asks = ("Access-Control-Request-Method: POST", f"Access-Control-Request-Headers: {wanted}")
    return ask(stage, "OPTIONS /v1/responses HTTP/1.1", *asks, "Origin: https://app.example.org", token="")


def test_an_allowed_origin_needs_a_token_all_the_same(stage):
    assert ask(stage, "GET /api/agents HTTP/1.1", "Origin: https://app.example.org", token="").status == 401


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_a_form_could_send_is_refused(stage, kind):
    body = b'{"text": "go"}'
    headers = [f"Content-Length: {len(body)}", *([f"Content-Type: {kind}"] if kind else [])]
    assert ask(stage, "POST /api/agents/travel/prompt HTTP/1.1", *headers, body=body).status == 415


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


# --- sizes --------------------------------------------------------------------------------------------


def test_a_body_of_10_mb_is_refused(stage):
    size = 10 * 1024 * 1024
    told = ask(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json",
               f"Content-Length: {size}", body=b"x" * size)  # fmt: skip
    assert (told.status, told.code) == (413, "too_large")
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    untold = ask(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json",
                 "Transfer-Encoding: chunked", body=piece * 160)  # fmt: skip
    assert (untold.status, untold.code) == (413, "too_large")
    with stage.client() as client:
        write = {"tool": "write", "params": {"path": "m", "content": "x" * 1_500_000}}
        fine = client.post("/api/agents/travel/exec", json=write)
        assert fine.status_code == 200, "control: one below the limit is taken"


def test_without_a_token_no_body_is_read(stage):
    refused = ask(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Length: 1000000",
                  "Expect: 100-continue", token="")  # fmt: skip
    assert refused.status == 401
    assert not refused.raw.startswith(b"HTTP/1.1 100"), "it is not even asked to send it"
    assert b"connection: close" in refused.head


@pytest.mark.parametrize("count", [65, 1000, 10_000, 100_000])
def test_thousands_of_headers_are_refused(stage, count):
    answer = ask(stage, "GET /api/health HTTP/1.1", *[f"x{n}: y" for n in range(count)])
    assert answer.status in (400, 431), answer.raw[:200]
    assert ask(stage, "GET /api/health HTTP/1.1", *[f"x{n}: y" for n in range(50)]).status == 200, "control"


def test_a_head_without_end_is_refused(stage):
    for data in (
        b"GET /api/health HTTP/1.1\r\nx: " + b"y" * 1_000_000,
        b"GET /" + b"a" * 1_000_000,
        b"G" * 200_000,
    ):
        answer = Answer(raw(stage, data))
        assert answer.status in (0, 400)
    assert ask(stage, f"GET /api/agents?x={'y' * 5000} HTTP/1.1").status == 414


ODD_JSON = [
    b"[" * 100_000, b'{"text":' + b"[" * 50_000, b"{}", b"null", b'{"text":1}', b'{"text":"\xff"}', b"", b"{",
    b'{"text":"\\ud800"}', b'{"text":""}', b'{"text":"x","more":1}', b'{"text":"x"} x',
]  # fmt: skip


def test_deep_and_odd_json_is_refused(stage):
    for body in ODD_JSON:
        answer = ask(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json",
                     f"Content-Length: {len(body)}", body=body)  # fmt: skip
        assert (answer.status, answer.code) == (400, "malformed"), body[:40]


# --- slowness -----------------------------------------------------------------------------------------


def test_slow_headers_end(stage):
    """Connections that say a little, again and again, are answered and closed, all of them; others are
    served meanwhile."""
    opened = [socket.create_connection(("127.0.0.1", stage.port), timeout=60) for _ in range(20)]
    over = threading.Event()

    def dribble():
        while not over.wait(0.5):
            for connection in opened:
                try:
                    connection.sendall(b"x-slow: 1\r\n")
                except OSError:
                    pass

    for connection in opened:
        connection.sendall(b"GET /api/health HTTP/1.1\r\n")
    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        with stage.client() as client:
            assert client.get("/api/health").status_code == 200
        for connection in opened:
            assert connection.recv(65536).startswith(b"HTTP/1.1 408")
    finally:
        over.set()
        thread.join()
        for connection in opened:
            connection.close()


def test_silent_connections_end(stage):
    with socket.create_connection(("127.0.0.1", stage.port), timeout=60) as silent:
        assert silent.recv(100).startswith(b"HTTP/1.1 408")


def test_a_body_that_never_ends_is_given_up(stage):
    """Told 413 or 408, and then no longer read."""
    head = request(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json",
                   "Transfer-Encoding: chunked")  # fmt: skip
    with socket.create_connection(("127.0.0.1", stage.port), timeout=90) as connection:
        connection.sendall(head)
        connection.settimeout(0.2)
        got, ended, end = b"", False, time.monotonic() + 90
        while not ended:
            assert time.monotonic() < end, "it is still listening"
            try:
                connection.sendall(b"1\r\nx\r\n")
                piece = connection.recv(65536)
                got, ended = got + piece, not piece
            except TimeoutError:
                continue
            except OSError:
                ended = True
    assert Answer(got).status == 408


def test_a_flood_that_ignores_its_refusal_is_cut_off(stage):
    """The body goes on for ever after the 413."""
    head = request(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json",
                   "Transfer-Encoding: chunked")  # fmt: skip
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", stage.port), timeout=60) as connection:
        connection.sendall(head)
        sent, end = 0, time.monotonic() + 60
        try:
            while time.monotonic() < end:
                connection.sendall(piece)
                sent += len(piece)
            pytest.fail(f"it took {sent} bytes and went on")
        except OSError:
            pass


def test_too_many_connections_are_refused_and_cost_the_others_nothing(stage):
    """`maxConnections` is 60 here."""
    with stage.client() as client:
        assert client.get("/api/health").status_code == 200
        opened = []
        try:
            answers = []
            for _ in range(100):
                opened.append(socket.create_connection(("127.0.0.1", stage.port), timeout=20))
            for connection in opened[80:]:
                answers.append(connection.recv(65536))
            assert all(answer.startswith(b"HTTP/1.1 503") for answer in answers)
            assert client.get("/api/health").status_code == 200, "who is in is served"
        finally:
            for connection in opened:
                connection.close()

    def free():
        return ask(stage, "GET /api/health HTTP/1.1").status == 200

    until(free, "there is room again")


def test_a_client_that_does_not_read_costs_others_nothing(stage):
    """It asks for a history bigger than every buffer on the way, and reads none of it."""
    with stage.client() as client:
        client.post(
            "/api/agents/travel/exec",
            json={"tool": "write", "params": {"path": "h", "content": "y" * 250_000}},
        )
    read = b'{"tool":"read","params":{"path":"h"}}'
    one = request(stage, "POST /api/agents/travel/exec HTTP/1.1", "Content-Type: application/json",
                  f"Content-Length: {len(read)}", body=read)  # fmt: skip
    one = one.replace(b"Connection: close\r\n", b"")
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.settimeout(60)
        stuck.connect(("127.0.0.1", stage.port))
        stuck.sendall(one * 20)
        with stage.client() as client:
            for _ in range(20):
                assert client.get("/api/agents").status_code == 200


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
