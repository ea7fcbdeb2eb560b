"""Who is admitted to the bus."""

import pytest

from beige.keys import secret_digest
from broker.auth import CONNECTS_PER_10_S, OK, REFUSED, TRY_LATER, Authenticator, Gate

SECRET = "ab" * 32
USERS = {"llm/0": {"sha256": secret_digest(SECRET), "uid": 1000}}
HERE = "localhost:1000:1000:77"


@pytest.mark.parametrize(
    ("user", "secret", "address", "expected"),
    [
        ("llm/0", SECRET, HERE, OK),
        ("llm/0", SECRET[:-1] + "0", HERE, REFUSED),
        ("llm/0", "", HERE, REFUSED),
        ("llm/1", SECRET, HERE, REFUSED),
        ("", "", HERE, REFUSED),
        ("llm/0", SECRET, "localhost:1001:1000:77", REFUSED),
        ("llm/0", SECRET, "localhost:0:0:77", REFUSED),
        ("llm/0", SECRET, "127.0.0.1", REFUSED),
        ("llm/0", SECRET, "", REFUSED),
    ],
    ids=[
        "right",
        "wrong secret",
        "no secret",
        "other user",
        "nobody",
        "wrong uid",
        "root",
        "tcp",
        "no address",
    ],
)
def test_secret_and_uid_must_both_be_right(user, secret, address, expected):
    assert Gate(USERS).decide(user, secret, address, now=1.0) == expected


def test_a_banned_user_stays_out_for_a_while():
    gate = Gate(USERS)
    gate.ban("llm/0", until=10.0)
    assert gate.decide("llm/0", SECRET, HERE, now=9.9) == REFUSED
    assert gate.decide("llm/0", SECRET, HERE, now=10.1) == OK


def test_the_rate_of_connections_is_bounded():
    gate = Gate(USERS)
    answers = [gate.decide("llm/0", SECRET, HERE, now=1.0) for _ in range(CONNECTS_PER_10_S + 1)]
    assert answers[-2:] == [OK, TRY_LATER]
    assert gate.decide("llm/0", SECRET, HERE, now=12.0) == OK


def frames(domain=b"bus", mechanism=b"PLAIN", user=b"llm/0"):
    return [b"1.0", b"7", domain, HERE.encode(), b"id", mechanism, user, SECRET.encode()]


@pytest.fixture
def reply():
    """The handler's answer to raw frames, without its thread."""
    handler = object.__new__(Authenticator)
    handler._gate = Gate({**USERS, "tap/0": USERS["llm/0"]})
    handler.refused = 0
    return handler._reply


@pytest.mark.parametrize(
    ("request_frames", "code"),
    [
        (frames(), b"200"),
        (frames(mechanism=b"NULL"), b"400"),
        (frames(mechanism=b"CURVE"), b"400"),
        (frames()[:7], b"400"),
        ([], b"400"),
        (frames(domain=b"tap"), b"400"),
        (frames(domain=b"tap", user=b"tap/0"), b"200"),
        (frames(domain=b"other"), b"400"),
    ],
    ids=["plain", "null", "curve", "short", "empty", "llm at the tap", "tap at the tap", "unknown domain"],
)
def test_only_plain_with_all_frames_is_considered(reply, request_frames, code):
    answer = reply(request_frames)
    assert answer[2] == code
    assert answer[4] == (request_frames[6] if code == b"200" else b"")
