"""Makes a model's words text that can be sent, stored and shown. Pure.

JSON can name half of a surrogate pair (`"\\ud83d"`), and Python's parser takes it; neither the bus nor a
session file can hold it. A vendor that cuts an emoji in two, or a model that is asked to write one, must
not end the turn (`tests/attacks/test_hostile_content.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from beige.unseen import text_of
from services.llm.conversation import Assistant
from services.llm.events import MessageDone, ModelEvent, TextDelta, ThinkingDelta, ToolCallDelta


def well_formed(event: ModelEvent) -> ModelEvent:
    match event:
        case TextDelta(text) | ThinkingDelta(text):
            return event if text.isascii() else replace(event, text=text_of(text))
        case ToolCallDelta(name):
            return event if name.isascii() else replace(event, name=text_of(name))
        case MessageDone(message):
            return replace(event, message=message_of(message))
        case _:
            return event


def message_of(message: Assistant) -> Assistant:
    try:
        msgspec.msgpack.encode(message)
    except UnicodeEncodeError:
        return msgspec.convert(_cleaned(msgspec.to_builtins(message)), Assistant)
    return message


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return text_of(value)
        case list() | tuple():
            return [_cleaned(one) for one in value]
        case dict():
            return {_cleaned(key): _cleaned(one) for key, one in value.items()}
        case _:
            return value
