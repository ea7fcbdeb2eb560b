"""Reads the file of tokens, again whenever it changes. Touches that file alone.

Fails closed: with a file that can't be read nobody gets in.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from beige import tokens
from beige.errors import ConfigError
from beige.paths import Home
from beige.tokens import Token
from services.gateway.access import Headers, find_token

NOT_READ, UNREADABLE = (-1,), (-2,)
log = logging.getLogger("gateway")


class Tokens:
    def __init__(self, home: Home) -> None:
        self._home = home
        self._seen: tuple[int, ...] = NOT_READ
        self._tokens: list[Token] = []

    def present(self, headers: Headers) -> Token:
        """The token a request comes with. HttpError 401."""
        self._refresh()
        return find_token(self._tokens, headers, datetime.now(UTC))

    def still_good(self, token: Token) -> bool:
        """Whether a token that was good has neither been revoked nor expired since."""
        self._refresh()
        return token in self._tokens and not token.expired(datetime.now(UTC))

    def _refresh(self) -> None:
        try:
            seen = self._state()
            if seen != self._seen:
                self._tokens, self._seen = tokens.read(self._home), seen
        except ConfigError as error:
            if self._seen != UNREADABLE:
                log.error("no token is good: %s", error)
            self._tokens, self._seen = [], UNREADABLE

    def _state(self) -> tuple[int, ...]:
        """Changes whenever the file does."""
        try:
            info = self._home.http_tokens.stat()
        except OSError:
            return ()
        return (info.st_mtime_ns, info.st_ino, info.st_size, info.st_mode)
