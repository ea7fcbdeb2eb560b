"""What a client says of a conversation, read into what every provider takes, or refused."""

import pytest

from beige.errors import Malformed
from beige.messages.chat import ChatCall, ChatMessage, ChatTool
from services.llm.chat import messages, specs
from services.llm.conversation import Assistant, Prompt, ToolResult


def user(text="hello"):
    return ChatMessage("user", text)


def calls(*ids, text=""):
    return ChatMessage("assistant", text, tool_calls=[ChatCall(i, "look", {"at": i}) for i in ids])


def result(tool_id, text="seen"):
    return ChatMessage("tool", text, tool_id=tool_id)


def test_a_conversation_with_tools_is_read():
    found = messages([user(), calls("a", "b", text="I look."), result("b"), result("a"), user("and?")])
    assert [type(message) for message in found] == [Prompt, Assistant, ToolResult, ToolResult, Prompt]
    assert found[1].text == "I look."
    assert [call.args for call in found[1].tool_calls] == [{"at": "a"}, {"at": "b"}]
    assert [(message.tool_id, message.tool) for message in found[2:4]] == [("b", "look"), ("a", "look")]


@pytest.mark.parametrize(
    ("conversation", "why"),
    [
        ([user(), calls("a")], "no result of the call 'a'"),
        ([user(), calls("a"), user()], r"messages\[2\]: before it, the call 'a' needs its result"),
        ([user(), result("a")], r"messages\[1\]: there is no open call 'a'"),
        ([user(), calls("a"), result("a"), result("a")], "no open call 'a'"),
        ([user(), calls("a", "a"), result("a")], "two calls have the same id"),
        ([user(), ChatMessage("assistant", "hi")], "the last one is the model's own"),
        ([user(), ChatMessage("assistant"), user()], "says nothing"),
    ],
)
def test_what_no_provider_would_take_is_refused(conversation, why):
    with pytest.raises(Malformed, match=why):
        messages(conversation)


def test_tools_have_names_of_their_own_and_take_objects():
    (spec,) = specs([ChatTool("look", "Looks.", {"properties": {}})])
    assert (spec.name, spec.schema) == ("look", {"type": "object", "properties": {}})
    with pytest.raises(Malformed, match="same name"):
        specs([ChatTool("look"), ChatTool("look")])
