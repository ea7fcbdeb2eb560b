"""Decides which parts of a body an operator's copy may show. Pure; deny by default.

A field is shown only if its method's list below names it; of anything else only the size. Whatever
is shown, and every other text of an event, also loses what looks like a secret
(`test_a_secret_never_gets_through`).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from beige import wire

MAX_TEXT = 256
MAX_ITEMS = 16
HIDDEN = "<redacted>"

REQUEST: dict[str, frozenset[str]] = {
    "sandbox.exec": frozenset({"cwd", "timeout_s"}),
    "sandbox.read": frozenset({"path", "offset", "limit"}),
    "sandbox.write": frozenset({"path", "size", "sha256"}),
    "sandbox.patch": frozenset({"path", "all"}),
    "tools.call": frozenset({"tool", "cwd"}),
    "egress.connect": frozenset({"host", "port", "scheme", "method"}),
    "policy.learn": frozenset({"duration_s"}),
    "bus.tap": frozenset({"on", "bodies"}),
}
REPLY: dict[str, frozenset[str]] = {
    "sandbox.exec": frozenset(
        {"exit_code", "stdout_bytes", "stderr_bytes", "stdout_cut", "stderr_cut", "timed_out", "duration_ms"}
    ),
    "sandbox.read": frozenset({"kind", "size", "streamed", "media_type", "first_line", "lines"}),
    "sandbox.write": frozenset({"size", "created"}),
    "sandbox.patch": frozenset({"replacements", "first_line"}),
    "sandbox.ensure": frozenset({"agent", "state", "image", "profile", "executor"}),
    "tools.call": frozenset({"success", "exit_code"}),
    "egress.connect": frozenset({"sent_bytes", "received_bytes"}),
    "llm.prompt": frozenset({"session", "stop_reason", "model", "scripted", "tool_calls", "usage"}),
}
ITEM: dict[str, frozenset[str]] = {
    "sandbox.exec": frozenset({"stream"}),
    "llm.prompt": frozenset(
        {"kind", "tool_id", "tool", "stream", "exit_code", "is_error", "duration_ms", "model", "usage"}
    ),
}
FIRST_WORD: dict[str, frozenset[str]] = {
    "sandbox.exec": frozenset({"command", "argv"}),
    "tools.call": frozenset({"args"}),
}
"""Of these only the program or subcommand is shown, when it is a plain word."""

_SECRETS = re.compile(
    r"""
    -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----.*
    | \b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}
    | \b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|hf_|npm_|AKIA|ASIA|AIza)[A-Za-z0-9_-]{8,}
    | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.?[A-Za-z0-9_-]*
    | \b\d{6,12}:[A-Za-z0-9_-]{30,}
    | (?i:\b(?:bearer|basic|token)[ ]+)[^\s"']{6,}
    | (?i:[A-Z0-9_-]*(?:api[_-]?key|token|secret|passw(?:or)?d|passphrase|credential)[A-Z0-9_-]*
        ["']?\s*[=:]\s*["']?)[^\s"']+
    | (?<=://)[^/\s:@]+:[^/\s@]+(?=@)
    | \b[0-9a-fA-F]{40,}\b
    """,
    re.VERBOSE | re.DOTALL,
)
_WORD = re.compile(r"\s*([A-Za-z][A-Za-z0-9_.-]{0,31})(?=\s|\Z)")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def text(value: str) -> str:
    """`value` without what looks like a secret, and not longer than `MAX_TEXT`."""
    clean = _SECRETS.sub(HIDDEN, value[: MAX_TEXT * 16])
    if len(clean) > MAX_TEXT:
        return clean[:MAX_TEXT] + "…"
    return clean


def body(kind: str, method: str, raw: bytes) -> dict[str, Any]:
    """The parts of a body that may be seen. `kind`: CALL, REPLY, ITEM or ERR; `method`: `service.method`,
    empty if unknown. Never raises: what can't be read shows as its size."""
    if kind == "ERR":
        return {"message": text(wire.decode_error_body(raw))}
    shown = {"CALL": REQUEST, "REPLY": REPLY, "ITEM": ITEM}.get(kind, {}).get(method, frozenset())
    try:
        fields = msgspec.msgpack.decode(raw)
    except wire.DECODE_ERRORS:
        fields = None
    if not isinstance(fields, dict) or len(fields) > 64:
        return {"": size_of(raw)}
    words = FIRST_WORD.get(method, frozenset()) if kind == "CALL" else frozenset()
    return {text(str(name))[:64]: _field(str(name), value, shown, words) for name, value in fields.items()}


def _field(name: str, value: Any, shown: frozenset[str], words: frozenset[str]) -> Any:
    if name in shown:
        if name == "sha256" and isinstance(value, str) and _SHA256.match(value):
            return value
        return _clean(value)
    if name in words:
        return _first_word(value)
    return size_of(value)


def _clean(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict) and all(isinstance(v, int | float) for v in value.values()):
        return {text(str(k)): v for k, v in list(value.items())[:MAX_ITEMS]}
    return size_of(value)


def _first_word(value: Any) -> str:
    words = value if isinstance(value, list) else [value]
    first = words[0] if words and isinstance(words[0], str) else ""
    match = _WORD.match(first)
    size = size_of(value)
    return f"{text(match[1])} {size}" if match else size


def size_of(value: Any) -> str:
    """What is said of a value that isn't shown."""
    if isinstance(value, str):
        return f"<{len(value)} characters>"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, list | dict):
        return f"<{len(value)} items>"
    return "<hidden>"
