"""Secrets of the house itself: one bus secret per process, and the corridor's two seal keys.

keys/bus/<role>-<n>.key  64 hex characters, 0600, read by that process alone
keys/bus-users.json      what the broker needs: SHA-256 of each secret and the uid it is for
keys/verdict.key         shared by policy (signs), audit and the executors (verify)
keys/receipt.key         shared by audit (signs) and the executors (verify)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import TypedDict

from beige.errors import ConfigError
from beige.paths import Home, private_directory

SECRET_HEX = 64
_USER = re.compile(r"[a-z][a-z_]{0,15}/[0-9]{1,3}\Z")


class BusUser(TypedDict):
    sha256: str
    uid: int


def write_private(path: Path, content: str | bytes) -> None:
    """Atomically write a 0600 file."""
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def key_path(home: Home, user: str) -> Path:
    if not _USER.match(user):
        raise ConfigError("bus user", f"{user!r} is not of the form role/number")
    return home.keys / "bus" / (user.replace("/", "-") + ".key")


def ensure_keys(home: Home, users: list[str]) -> None:
    """Create what is missing and publish the table for the broker. Existing secrets are kept;
    users no longer listed lose their entry and their key file."""
    private_directory(home.keys)
    private_directory(home.keys / "bus")
    table: dict[str, BusUser] = {}
    for user in users:
        path = key_path(home, user)
        if not path.exists():
            write_private(path, secrets.token_hex(SECRET_HEX // 2))
        table[user] = {"sha256": secret_digest(read_secret(home, user)), "uid": path.stat().st_uid}
    wanted = {key_path(home, user) for user in users}
    for stale in set((home.keys / "bus").glob("*.key")) - wanted:
        stale.unlink()
    for name in ("verdict.key", "receipt.key"):
        if not (home.keys / name).exists():
            write_private(home.keys / name, secrets.token_hex(SECRET_HEX // 2))
    write_private(home.keys / "bus-users.json", json.dumps(table, indent=1) + "\n")


def read_secret(home: Home, user: str) -> str:
    """The hex secret of `user`. ConfigError if missing, readable by others or malformed."""
    return _read_key(key_path(home, user))


def read_seal_key(home: Home, name: str) -> bytes:
    """`verdict` or `receipt`."""
    return bytes.fromhex(_read_key(home.keys / f"{name}.key"))


def read_bus_users(home: Home) -> dict[str, BusUser]:
    path = home.keys / "bus-users.json"
    try:
        table: dict[str, BusUser] = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(str(path), "is missing", "run `beige setup`") from None
    except ValueError as error:
        raise ConfigError(str(path), f"is not JSON ({error})", "run `beige setup`") from None
    return table


def secret_digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read_key(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        text = path.read_text().strip()
    except FileNotFoundError:
        raise ConfigError(str(path), "is missing", "run `beige setup`") from None
    if mode & 0o077:
        raise ConfigError(str(path), "is readable by other users", f"run `chmod 600 {path}`")
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ConfigError(str(path), "does not hold 64 hex characters", "delete it and run `beige setup`")
    return text
