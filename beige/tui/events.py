"""What happens in a session, as this client knows it. No I/O.

Live events come from the API, past ones are made of the session's file (`replay`): both are shown by
the same code. Unknown fields and kinds are passed over, so that a newer gateway can still be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct


class TurnEvent(Struct, frozen=True, omit_defaults=True):
    """`beige.messages.llm.PromptEvent`; and kind "prompt", what the user said."""

    kind: str
    session: str = ""
    text: str = ""
    tool_id: str = ""
    tool: str = ""
    args: dict[str, Any] = {}
    stream: str = ""
    exit_code: int | None = None
    is_error: bool = False
    duration_ms: float = 0.0
    model: str = ""
    usage: dict[str, int] = {}
    cost: float | None = None


class TurnResult(Struct, frozen=True):
    """`beige.messages.llm.PromptResult`."""

    session: str = ""
    text: str = ""
    stop_reason: str = ""
    model: str = ""
    scripted: bool = False
    tool_calls: int = 0
    usage: dict[str, int] = {}
    cost: float | None = None


_event = msgspec.json.Decoder(TurnEvent)
_result = msgspec.json.Decoder(TurnResult)


def decode_event(data: str) -> TurnEvent:
    """ValueError for anything but an event."""
    return _event.decode(data)


def decode_result(data: str) -> TurnResult:
    return _result.decode(data)


def replay(entries: list[dict[str, Any]]) -> list[TurnEvent]:
    """The events a session's file tells of, in order. Lines that say nothing to a reader are left out."""
    events: list[TurnEvent] = []
    args: dict[str, tuple[str, dict[str, Any]]] = {}
    for at, entry in enumerate(entries):
        if entry.get("type") == "assistant":
            calls = (b for b in entry.get("content", []) if b.get("type") == "tool_call")
            args.update({call["id"]: (call.get("name", ""), call.get("args", {})) for call in calls})
        events += _events_of(_as_shown(entries, at), args)
    return events


def _as_shown(entries: list[dict[str, Any]], at: int) -> dict[str, Any]:
    """An answer as the agent's hooks left it: what was kept from its reader is not shown afterwards."""
    entry, text = entries[at], None
    for hook in _hooks_after(entries, at) if entry.get("type") == "assistant" else ():
        if hook.get("state") == "replaced":
            text = str(hook.get("text", ""))
        elif hook.get("state") in ("refused", "failed"):
            text = ""
    if text is None:
        return entry
    calls = [block for block in entry.get("content", []) if block.get("type") == "tool_call"]
    return {**entry, "content": [{"type": "text", "text": text}, *calls]}


def _hooks_after(entries: list[dict[str, Any]], at: int) -> Iterator[dict[str, Any]]:
    for number in range(at + 1, len(entries)):
        if entries[number].get("type") != "hook":
            return
        yield entries[number]


def _events_of(entry: dict[str, Any], calls: dict[str, tuple[str, dict[str, Any]]]) -> list[TurnEvent]:
    match entry.get("type"):
        case "prompt":
            return [TurnEvent("prompt", text=str(entry.get("text", "")))]
        case "assistant":
            model, usage = str(entry.get("model", "")), entry.get("usage", {})
            end = TurnEvent("message_end", model=model, usage=usage, cost=_dollars(entry.get("cost_nano")))
            return [*_said(entry), end]
        case "tool_start":
            tool_id = str(entry.get("tool_id", ""))
            name, args = calls.get(tool_id, ("", {}))
            return [TurnEvent("tool_start", tool_id=tool_id, tool=name, args=args)]
        case "tool_result":
            return [_tool_end(entry)]
        case "attempt":
            text = f"{entry.get('error', 'a model failed')}; another attempt followed"
            return [TurnEvent("model_fallback", text=text, model=str(entry.get("model", "")))]
        case "turn_end" if entry.get("outcome") != "answered":
            why = f": {entry['error']}" if entry.get("error") else ""
            return [TurnEvent("notice", text=f"this turn was {entry.get('outcome')}{why}")]
        case "hook" if entry.get("state") in ("replaced", "skipped"):
            what = "prompt" if entry.get("hook") == "prePrompt" else "answer"
            did = "changed" if entry["state"] == "replaced" else "could not check"
            return [TurnEvent("notice", text=f"plugin {entry.get('plugin')!r} {did} the {what}")]
        case "notice":
            return [TurnEvent("notice", text=str(entry.get("text", "")))]
        case "compaction":
            return [TurnEvent("compaction", text=str(entry.get("summary", "") or entry.get("text", "")))]
    return []


def _said(entry: dict[str, Any]) -> list[TurnEvent]:
    kinds = {"text": "text_delta", "thinking": "thinking_delta"}
    blocks = [block for block in entry.get("content", []) if block.get("type") in kinds]
    return [TurnEvent(kinds[block["type"]], text=str(block.get("text", ""))) for block in blocks]


def _dollars(nano: Any) -> float | None:
    return nano / 1e9 if isinstance(nano, int) else None


def _tool_end(entry: dict[str, Any]) -> TurnEvent:
    blocks = [block for block in entry.get("content", []) if block.get("type") == "text"]
    return TurnEvent(
        "tool_end",
        tool_id=str(entry.get("tool_id", "")),
        tool=str(entry.get("tool", "")),
        text="\n".join(str(block.get("text", "")) for block in blocks),
        exit_code=entry.get("exit_code"),
        is_error=bool(entry.get("is_error")),
        duration_ms=float(entry.get("duration_ms", 0.0)),
    )


def unfinished(entries: list[dict[str, Any]]) -> bool:
    """True if the last turn has no end in the file: it runs, or its process died."""
    for entry in reversed(entries):
        if entry.get("type") in ("turn_end", "prompt"):
            return bool(entry["type"] == "prompt")
    return False


def before_last_turn(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Up to the last prompt: what comes after it is told by the running turn's events once more."""
    prompts = [at for at, entry in enumerate(entries) if entry.get("type") == "prompt"]
    return entries[: prompts[-1] + 1] if prompts else entries
