"""The file of tokens: private, hashed, changed by one at a time, and never a token in it."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from beige import tokens
from beige.errors import ConfigError, Failed, Malformed, NotFound

NOW = datetime(2026, 3, 5, 12, tzinfo=UTC)


def test_set_up_makes_one_token_once(home):
    tokens.ensure(home)
    secret = home.http_token.read_text().strip()
    (token,) = tokens.read(home)
    assert token.digest == tokens.digest_of(secret)
    assert (token.agents, token.scopes, token.expires) == (("*",), tokens.SCOPES, None)
    tokens.ensure(home)
    assert home.http_token.read_text().strip() == secret


def test_files_are_private_and_hold_no_token(home):
    tokens.ensure(home)
    secret = tokens.create(home, "ci", ("travel",), ("read",), None)
    for path in (home.http_tokens, home.http_token):
        assert path.stat().st_mode & 0o077 == 0
        assert secret not in path.read_text()
    assert home.http_token.read_text().strip() not in home.http_tokens.read_text()


def test_a_token_is_long_and_random(home):
    tokens.ensure(home)
    made = {tokens.create(home, f"t{n}", ("*",), ("read",), None) for n in range(5)}
    assert len(made) == 5
    assert all(len(secret) >= len(tokens.PREFIX) + 43 for secret in made)


def test_revoked_is_gone_and_the_set_up_token_does_not_come_back(home):
    tokens.ensure(home)
    tokens.create(home, "ci", ("travel",), ("read",), None)
    tokens.revoke(home, "ci")
    assert [token.name for token in tokens.read(home)] == ["setup"]
    tokens.revoke(home, "setup")
    tokens.ensure(home)
    assert tokens.read(home) == []
    assert not home.http_token.exists()
    with pytest.raises(NotFound):
        tokens.revoke(home, "ci")


def test_names_are_unique_and_plain(home):
    tokens.ensure(home)
    tokens.create(home, "ci", ("*",), ("read",), None)
    with pytest.raises(Failed, match="already"):
        tokens.create(home, "ci", ("*",), ("read",), None)
    for name in ("", "Ci", "a b", "../x", "a" * 33, "\x1b[31m"):
        with pytest.raises(Malformed):
            tokens.create(home, name, ("*",), ("read",), None)


def test_many_at_once_lose_none(home):
    tokens.ensure(home)
    threads = [
        threading.Thread(target=tokens.create, args=(home, f"t{n}", ("*",), ("read",), None))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens.read(home)) == 17


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"tokens":[{}]}', b'{"tokens":[],"x":1}', b"\xff", b'{"tokens":[' * 9999]
)
def test_a_damaged_file_is_an_error(home, content):
    tokens.ensure(home)
    home.http_tokens.write_bytes(content)
    with pytest.raises(ConfigError, match="not readable"):
        tokens.read(home)


def test_a_file_open_to_others_is_an_error(home):
    tokens.ensure(home)
    home.http_tokens.chmod(0o640)
    with pytest.raises(ConfigError, match="open to other users"):
        tokens.read(home)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30d", 30 * 86400), ("12h", 12 * 3600), ("90m", 5400), ("never", None)]
)
def test_lifetimes(text, seconds):
    assert tokens.expiry(text, NOW) == (NOW + timedelta(seconds=seconds) if seconds else None)


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "0d", "1w", "1.5h", "Never", "999999d"])
def test_odd_lifetimes_are_malformed(text):
    with pytest.raises(Malformed):
        tokens.expiry(text, NOW)
