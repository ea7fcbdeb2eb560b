"""Who is let in, as tables: Host, Origin, token, scope, head."""

from datetime import UTC, datetime, timedelta

import pytest

from beige.config import GatewayConfig
from beige.tokens import SCOPES, Token, digest_of
from services.gateway import access
from services.gateway.errors import HttpError

NOW = datetime(2026, 3, 5, 12, tzinfo=UTC)
DOOR = access.door(GatewayConfig(cors=("https://App.example.org",), allowedHosts=("beige.Example.org",)))


def token(secret="s", **more):
    fields = {
        "name": "t",
        "agents": ("travel",),
        "scopes": ("prompt",),
        "created": NOW,
        "expires": None,
        **more,
    }
    return Token(digest=digest_of(secret), **fields)


@pytest.mark.parametrize(
    ("host", "fine"),
    [
        ("localhost", True), ("localhost:7433", True), ("LOCALHOST:1", True), ("127.0.0.1:7433", True),
        ("[::1]:7433", True), ("beige.example.org", True), ("evil.example.org", False), ("", False),
        ("127.0.0.1.evil.example.org", False), ("localhost.evil.org:7433", False), ("10.0.0.1", False),
        ("evil.org@localhost", False), ("localhost:7433@evil.org", False), ("localhost\t", False),
        ("localhost, evil.org", False), ("[::1", False), ("localhost:", False), ("localhost:99999999", False),
    ],
)  # fmt: skip
def test_only_its_own_names_are_good_as_host(host, fine):
    try:
        access.check_host(DOOR, [(b"host", host.encode())])
        assert fine
    except HttpError as error:
        assert not fine
        assert error.status == 421


def test_no_host_at_all_is_refused():
    with pytest.raises(HttpError):
        access.check_host(DOOR, [])


def test_any_address_is_good_where_it_listens_at_all():
    everywhere = access.door(GatewayConfig(host="0.0.0.0", insecureBind=True))
    access.check_host(everywhere, [(b"host", b"192.168.1.5:7433")])
    with pytest.raises(HttpError):
        access.check_host(everywhere, [(b"host", b"evil.example.org")])


@pytest.mark.parametrize(
    ("headers", "fine"),
    [
        ({}, True),
        ({"origin": "https://app.example.org"}, True),
        ({"origin": "HTTPS://APP.example.org"}, True),
        ({"origin": "https://app.example.org:8443"}, False),
        ({"origin": "http://app.example.org"}, False),
        ({"origin": "https://evil.example.org"}, False),
        ({"origin": "http://localhost:7433"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "none"}, True),
    ],
)
def test_only_pages_of_configured_origins_may_ask(headers, fine):
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    try:
        access.check_origin(DOOR, pairs)
        assert fine
    except HttpError as error:
        assert not fine
        assert error.status == 403


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic cw==", "Bearer x", "Bearer S", "s", "Bearer s s", "Bearer \xff"],
)
def test_without_the_right_token_nobody_comes_in(header):
    headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
    with pytest.raises(HttpError) as refused:
        access.find_token([token()], headers, NOW)
    assert refused.value.status == 401
    assert refused.value.headers == {"www-authenticate": 'Bearer realm="beige"'}


def test_the_right_token_is_found_among_others():
    others = [token("a", name="a"), token("s", name="mine"), token("b", name="b")]
    assert access.find_token(others, [(b"authorization", b"bearer s")], NOW).name == "mine"


def test_an_expired_token_is_as_good_as_none():
    headers = [(b"authorization", b"Bearer s")]
    with pytest.raises(HttpError, match="wrong, revoked or expired"):
        access.find_token([token(expires=NOW)], headers, NOW)
    assert access.find_token([token(expires=NOW + timedelta(seconds=1))], headers, NOW)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_scope_is_for_itself_alone(scope):
    for held in SCOPES:
        try:
            access.check_scope(token(scopes=(held,)), (scope,), "travel")
            assert held == scope
        except HttpError as error:
            assert held != scope
            assert error.status == 403


def test_a_token_is_for_its_agents_alone():
    access.check_scope(token(), (), "travel")
    access.check_scope(token(agents=("*",)), (), "other")
    with pytest.raises(HttpError, match="not for this agent"):
        access.check_scope(token(), ("prompt",), "other")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"a", b"b")] * 65, 431),
        ([(b"a", b"b" * 17_000)], 431),
        ([(b"host", b"a"), (b"host", b"b")], 400),
        ([(b"authorization", b"a"), (b"authorization", b"b")], 400),
        ([(b"content-length", b"1"), (b"content-length", b"1")], 400),
        ([(b"content-length", b"1"), (b"transfer-encoding", b"chunked")], 400),
        ([(b"a", b"b")] * 64, None),
        ([(b"content-length", b"1")], None),
    ],
)
def test_a_head_has_limits_and_one_meaning(headers, status):
    if status is None:
        access.check_head(headers, b"/")
        return
    with pytest.raises(HttpError) as refused:
        access.check_head(headers, b"/")
    assert refused.value.status == status
    assert refused.value.headers == {"connection": "close"}
