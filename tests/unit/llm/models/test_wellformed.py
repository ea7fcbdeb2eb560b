"""Halves of surrogate pairs in a model's words become text that can be sent and stored."""

from __future__ import annotations

import msgspec
import pytest

from beige.unseen import text_of
from services.llm.conversation import Assistant, Text, ToolCall
from services.llm.events import MessageDone, TextDelta, ThinkingDelta, ToolCallDelta
from services.llm.models.wellformed import well_formed


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("plain", "plain"),
        ("Zürich 東京 \U0001f600", "Zürich 東京 \U0001f600"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
    ],
    ids=ascii,
)
def test_text(given: str, wanted: str) -> None:
    assert text_of(given) == wanted
    assert well_formed(TextDelta(given)) == TextDelta(wanted)
    assert well_formed(ThinkingDelta(given)) == ThinkingDelta(wanted)
    assert well_formed(ToolCallDelta(given)) == ToolCallDelta(wanted)


def test_a_whole_message_can_be_stored_afterwards() -> None:
    half = "\ud83d"
    call = ToolCall(id=half, name=half, args={half: [half, {"a": half}], "n": 1})
    message = Assistant(model="p/m", content=[Text(half), call], stop_reason="tool_use")
    with pytest.raises(UnicodeEncodeError):
        msgspec.json.encode(message)
    done = well_formed(MessageDone(message))
    assert isinstance(done, MessageDone)
    assert msgspec.json.decode(msgspec.json.encode(done.message), type=Assistant) == done.message
    assert done.message.tool_calls[0].args == {"\ufffd": ["\ufffd", {"a": "\ufffd"}], "n": 1}


def test_what_is_well_formed_is_left_alone() -> None:
    message = Assistant(model="p/m", content=[Text("\U0001f600")], stop_reason="end_turn")
    done = well_formed(MessageDone(message))
    assert isinstance(done, MessageDone)
    assert done.message is message
