"""Decides what a hook's answer is, from whatever its handler returned or raised. Pure.

A handler is foreign code: what is not one of the three answers is a failure, never taken for "unchanged",
so that a guard with a mistake in it lets nothing through (`tests/unit/tools/test_answers.py`).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from beige.messages.tools import HookName
from beige.pluginhost.loader import type_name
from beige.plugins import Refuse, Replace

MAX_CHARACTERS = 512 * 1024
MAX_BYTES = 900 * 1024
MAX_REASON = 500
"""Characters kept of a refusal's reason."""


class Answer(NamedTuple):
    state: Literal["unchanged", "replaced", "refused", "failed"]
    text: str = ""
    reason: str = ""


def from_value(plugin: str, hook: HookName, value: Any) -> Answer:
    match value:
        case None:
            return Answer("unchanged")
        case Replace():
            return _replaced(plugin, hook, value.text)
        case Refuse() if isinstance(value.reason, str):
            return Answer("refused", reason=_reason(value.reason) or "no reason was given")
        case Refuse():
            return _failed(plugin, "refused for a reason that is not text")
    return _failed(plugin, f"answered {hook} with a {type_name(value)} instead of None, Replace or Refuse")


def from_exception(plugin: str, error: BaseException) -> Answer:
    """The text of a foreign exception may hold paths and secrets: it goes to the log alone."""
    return _failed(plugin, f"failed ({type_name(error)}); the gateway's log has the details")


def _replaced(plugin: str, hook: HookName, text: Any) -> Answer:
    if not isinstance(text, str):
        return _failed(plugin, f"replaced a text by a {type_name(text)}")
    if hook == "prePrompt" and not text.strip():
        return _failed(plugin, "replaced the prompt by nothing")
    whole = text.encode(errors="replace")
    if len(text) > MAX_CHARACTERS or len(whole) > MAX_BYTES:
        return _failed(plugin, f"replaced a text by {len(whole)} bytes; at most {MAX_BYTES} are allowed")
    return Answer("replaced", whole.decode())


def _reason(text: str) -> str:
    """One line, safe to show."""
    clean = "".join(c if c.isprintable() else " " for c in text.strip())
    return clean[:MAX_REASON]


def _failed(plugin: str, what: str) -> Answer:
    return Answer("failed", reason=f"plugin '{plugin}' {what}")
