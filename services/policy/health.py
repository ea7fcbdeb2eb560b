"""Touches `data/provider-health.json`: which models are cooling down, until when.

{"version": 1, "models": [{"provider": "anthropic", "model": "claude-x", "coolingUntil": 1764430000.0}]}
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from beige.money import ModelKey

log = logging.getLogger("policy")
MAX_BYTES = 1024 * 1024
VERSION = 1


class Entry(Struct, rename="camel", forbid_unknown_fields=True):
    provider: str
    model: str
    cooling_until: float
    """Seconds since the epoch."""


class File(Struct, forbid_unknown_fields=True):
    version: int
    models: list[Entry]


def load(path: Path) -> dict[ModelKey, float]:
    """What the file says; nothing, with a warning in the log, if it can't be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        found = msgspec.json.decode(data, type=File)
        if found.version != VERSION:
            raise ValueError(f"it has version {found.version}, not {VERSION}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        log.warning("%s is not readable, so no model is cooling down: %s", path.name, error)
        return {}
    return {(entry.provider, entry.model): entry.cooling_until for entry in found.models}


def save(path: Path, until: Mapping[ModelKey, float]) -> None:
    """Replace the file in one step. A disk that is full costs the memory of cooldowns, not policy."""
    entries = [Entry(provider, model, at) for (provider, model), at in sorted(until.items())]
    data = msgspec.json.format(msgspec.json.encode(File(VERSION, entries)), indent=2)
    new = path.with_suffix(".new")
    try:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data + b"\n")
        new.replace(path)
    except OSError as error:
        log.error("%s can't be written: %s", path.name, error.strerror)
