"""Decides whether `channels.<name>.config` is right, and who may be served. Deny by default. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

API_BASE = "https://api.telegram.org"
_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{10,100}\Z")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEYS = ("token", "users", "chats", "agents", "apiBase")


@dataclass(frozen=True)
class Settings:
    token: str = field(repr=False)
    users: frozenset[int]
    """The people who are served, by Telegram's ids."""
    chats: frozenset[int] = frozenset()
    """Groups in which they are; in private they always are."""
    agents: dict[int, str] = field(default_factory=dict)
    """Chat to agent, where it isn't the channel's first."""
    api_base: str = API_BASE

    def serves(self, user: int | None, chat: int, kind: str) -> bool:
        """Stops strangers, and people of a group who are not listed (`tests/attacks/test_telegram.py`)."""
        return user in self.users and (kind == "private" or chat in self.chats)


def settings_of(config: dict[str, Any]) -> Settings:
    """ValueError names the key, and never holds a value."""
    unknown = sorted(set(config) - set(KEYS))
    if unknown:
        raise ValueError(f"config.{unknown[0]}: unknown key; allowed: {', '.join(KEYS)}")
    token = config.get("token")
    if not isinstance(token, str) or not _TOKEN.match(token):
        raise ValueError(
            'config.token: is not a bot\'s token; write "${TELEGRAM_TOKEN}" (BotFather gives it)'
        )
    users = _ids(config, "users")
    if not users:
        raise ValueError("config.users: lists nobody; write the Telegram ids of those who may use the bot")
    base = config.get("apiBase", API_BASE)
    if not isinstance(base, str) or not _safe(base):
        raise ValueError(
            "config.apiBase: must be https:// (or http:// on this machine): the token goes there"
        )
    return Settings(token, users, _ids(config, "chats"), _agents(config.get("agents", {})), base.rstrip("/"))


def _safe(base: str) -> bool:
    """Whether the token may go there: over TLS, or not beyond this machine."""
    try:
        url = urlsplit(base)
        plain = url.username is None and not url.query and not url.fragment and bool(url.hostname)
    except ValueError:
        return False
    return plain and (url.scheme == "https" or (url.scheme == "http" and url.hostname in LOOPBACK))


def _ids(config: dict[str, Any], key: str) -> frozenset[int]:
    value = config.get(key, [])
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ValueError(f"config.{key}: must be an array of Telegram's ids, which are whole numbers")
    return frozenset(value)


def _agents(value: Any) -> dict[int, str]:
    try:
        return {int(chat): str(agent) for chat, agent in value.items()}
    except (AttributeError, ValueError):
        raise ValueError('config.agents: must map chats to agents: { "-100123": "travel" }') from None
