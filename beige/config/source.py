"""Reads `config.json5` into plain values. The only file that knows JSON5."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from beige.errors import ConfigError

MAX_BYTES = 256 * 1024
_SYNTAX = re.compile(r"<string>:(\d+) (.*) at column (\d+)\Z", re.DOTALL)


def read(path: Path) -> dict[str, Any]:
    """The file's object with its variables unresolved. ConfigError with line and column if it is no JSON5."""
    return parse(_text(path), path.name)


def parse(text: str, name: str = "config.json5") -> dict[str, Any]:
    import json5

    try:
        value = json5.loads(text, allow_duplicate_keys=False)
    except ValueError as error:
        raise _syntax_error(str(error), name) from None
    except RecursionError:
        raise ConfigError(name, "is nested too deeply") from None
    _refuse_half_characters(value, name)
    if not isinstance(value, dict):
        raise ConfigError(name, "must hold one object", "write { llm: {...}, plugins: {...}, agents: {...} }")
    return value


def _refuse_half_characters(value: Any, name: str) -> None:
    """`"\\uD800"` is legal JSON5 but no text: it could be neither sent nor printed."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConfigError(name, "holds half a character (a lone surrogate such as \\uD800)") from None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(str(path), f"is bigger than {MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(str(path), "is missing", "run `beige setup` to get one to start from") from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), f"is not UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(str(path), f"can't be read ({error.strerror})") from None


def _syntax_error(message: str, name: str) -> ConfigError:
    found = _SYNTAX.match(message)
    if not found:
        return ConfigError(name, message.strip())
    line, what, column = found.groups()
    return ConfigError(f"{name}, line {line}, column {column}", what[0].lower() + what[1:])
