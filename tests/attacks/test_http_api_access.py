"""Threat: whoever reaches the HTTP API unasked: a stranger, the holder of a small token, a web page.

A real gateway of a real house, spoken to over raw sockets where a client library would be too polite.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from beige import tokens
from tests.attacks.http_stage import ask, opened_api, still_serves

PATHS = [
    ("GET", "/api/status"), ("GET", "/api/config"), ("POST", "/api/gateway/restart"), ("GET", "/api/agents"),
    ("GET", "/api/openapi.json"), ("GET", "/api/agents/travel/models"),
    ("GET", "/api/agents/travel/sessions"),
    ("POST", "/api/agents/travel/prompt"), ("POST", "/api/agents/travel/exec"), ("GET", "/nowhere"),
    ("GET", "/api/agents/nobody/models"), ("OPTIONS", "/api/agents"), ("TRACE", "/api/agents"), ("GET", "//"),
    ("GET", "/api/health/"), ("GET", "/api/health/../agents"), ("GET", "/API/HEALTH"),
    ("GET", "/api/health;x"),
]  # fmt: skip


RESTART = "/api/gateway/restart"


@pytest.fixture(scope="module")
def stage():
    with opened_api() as stage:
        yield stage


@pytest.fixture(autouse=True)
def control(stage):
    yield
    still_serves(stage)


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
