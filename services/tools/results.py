"""Decides what the agent gets for what a handler returned or raised. Pure.

A handler is foreign code: it may return anything, of any size. Whatever it is, the result is valid
UTF-8, fits into a bus body, and names no path and no text of a foreign exception.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from beige.pluginhost.loader import type_name
from beige.plugins import ToolError, ToolOutput

MAX_OUTPUT = 900 * 1024
"""Bytes of output and error together; the rest is cut with a notice."""
MAX_ERROR = 64 * 1024


class Result(NamedTuple):
    output: str
    error: str
    exit_code: int


def from_value(plugin: str, value: Any) -> Result:
    """The result for what a handler returned."""
    if value is None:
        return Result("", "", 0)
    if isinstance(value, str):
        return Result(cut(value, MAX_OUTPUT), "", 0)
    if not isinstance(value, ToolOutput):
        return _garbage(plugin, f"a {type_name(value)} instead of text")
    if not isinstance(value.output, str) or not isinstance(value.error, str):
        return _garbage(plugin, "output that is not text")
    if not isinstance(value.exit_code, int) or not 0 <= value.exit_code <= 255:
        return _garbage(plugin, "an exit code that is not a number from 0 to 255")
    error = cut(value.error, MAX_ERROR)
    output = cut(value.output, MAX_OUTPUT - len(error.encode()))
    return Result(output, error, value.exit_code or (1 if error else 0))


def from_exception(plugin: str, error: BaseException) -> Result:
    """The result for what a handler raised: only a `ToolError`'s text is meant for the agent."""
    if isinstance(error, ToolError) and isinstance(error.message, str):
        code = error.exit_code if isinstance(error.exit_code, int) and 0 < error.exit_code <= 255 else 1
        return Result("", cut(error.message, MAX_ERROR), code)
    return Result("", f"plugin '{plugin}' failed ({type_name(error)}); the gateway's log has the details", 1)


def cut(text: str, limit: int) -> str:
    """`text` as valid UTF-8 of at most about `limit` bytes, with a notice of what was left out."""
    kept = text[:limit].encode(errors="replace")
    if len(text) <= limit and len(kept) <= limit:
        return kept.decode()
    head = kept[:limit].decode(errors="ignore")
    return f"{head}\n[cut: {len(head)} of {len(text)} characters shown]\n"


def _garbage(plugin: str, what: str) -> Result:
    return Result("", f"plugin '{plugin}' returned {what}", 1)
