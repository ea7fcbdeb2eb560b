"""The HTTP API's tokens: what the file of them holds, who may change it, and what is asked of it.

keys/http-tokens.json   0600: name, SHA-256, agents, scopes and expiry of each token; no token itself
keys/http-token         0600: the token made at set-up, for the clients of the user who runs beige

A token is 32 random bytes, so its plain digest can't be guessed back. Written by the command line alone;
the gateway process only reads the first file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

import msgspec

from beige.errors import ConfigError, Failed, Malformed, NotFound
from beige.keys import write_private
from beige.paths import Home

Scope = Literal["prompt", "exec", "read", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
ANY_AGENT = "*"
SETUP_NAME = "setup"
PREFIX = "beige_"
MAX_TOKENS, MAX_BYTES = 1000, 1024 * 1024
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}\Z")
_LIFETIME = re.compile(r"([1-9]\d{0,4})([mhd])\Z")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token, as it is kept."""

    name: str
    digest: str
    """SHA-256 of the token's text, hex."""
    agents: tuple[str, ...]
    """Agents it is for; `*` for all."""
    scopes: tuple[Scope, ...]
    created: datetime
    expires: datetime | None = None

    def reaches(self, agent: str) -> bool:
        return ANY_AGENT in self.agents or agent in self.agents

    def expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= self.expires


class TokenFile(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[Token]


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def expiry(text: str, now: datetime) -> datetime | None:
    """`30d`, `12h`, `90m`, or `never`. Malformed otherwise."""
    if text == "never":
        return None
    if not (match := _LIFETIME.match(text)):
        raise Malformed(f"expires: {text!r} is no lifetime; write 30d, 12h, 90m or never")
    return now + timedelta(**{_UNITS[match[2]]: int(match[1])})


def read(home: Home) -> list[Token]:
    """Every token. ConfigError if the file is missing, readable by others or malformed."""
    path = home.http_tokens
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(str(path), "is missing", "run `beige setup`") from None
    if mode & 0o077:
        raise ConfigError(str(path), "is open to other users", f"run `chmod 600 {path}`")
    try:
        return msgspec.json.decode(data, type=TokenFile).tokens
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            str(path), f"is not readable ({error})", "delete it and run `beige setup`"
        ) from None


def create(home: Home, name: str, agents: tuple[str, ...], scopes: tuple[Scope, ...],
           expires: datetime | None) -> str:  # fmt: skip
    """A new token's text, which is kept nowhere. Failed if there is one of this name."""
    if not _NAME.match(name):
        raise Malformed(f"{name!r} is no name of a token: a-z, 0-9, - and _, at most 32 characters")
    with _changing(home) as tokens:
        if any(token.name == name for token in tokens):
            raise Failed(f"there is a token {name!r} already: revoke it first", executed="no")
        if len(tokens) >= MAX_TOKENS:
            raise Failed(f"there are {len(tokens)} tokens: revoke some first", executed="no")
        secret = PREFIX + secrets.token_urlsafe(32)
        tokens.append(Token(name, digest_of(secret), agents, scopes, _now(), expires))
    return secret


def revoke(home: Home, name: str) -> Token:
    """Remove one. The gateway refuses it from its next request on. NotFound if there is none."""
    with _changing(home) as tokens:
        found = next((token for token in tokens if token.name == name), None)
        if found is None:
            raise NotFound(f"there is no token {name!r}")
        tokens.remove(found)
        if name == SETUP_NAME:
            home.http_token.unlink(missing_ok=True)
    return found


def ensure(home: Home) -> None:
    """Make the set-up token, once: one that was revoked doesn't come back."""
    if home.http_tokens.exists():
        return
    secret = PREFIX + secrets.token_urlsafe(32)
    write_private(home.http_token, secret + "\n")
    _write(home, [Token(SETUP_NAME, digest_of(secret), (ANY_AGENT,), SCOPES, _now())])


@contextlib.contextmanager
def _changing(home: Home) -> Iterator[list[Token]]:
    """The tokens, to be changed in place; nobody else changes them meanwhile."""
    with (home.keys / "http-tokens.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tokens = read(home)
        yield tokens
        _write(home, tokens)


def _write(home: Home, tokens: list[Token]) -> None:
    write_private(home.http_tokens, msgspec.json.format(msgspec.json.encode(TokenFile(tokens))) + b"\n")


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
