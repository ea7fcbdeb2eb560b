"""What requests of OpenAI's clients ask for, and how a wrong one is told."""

import pytest

from services.gateway.openai.errors import Refused
from services.gateway.openai.requests import Said, of_chat, of_responses

HI = [{"role": "user", "content": "Hi"}]


def chat(**more):
    return {"model": "a", "messages": HI, **more}


def test_a_chat_becomes_what_was_said_and_the_clients_instructions():
    asked = of_chat(chat(messages=[
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "Hello", "tool_calls": None, "refusal": None},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "three", "name": "me"},
    ], stream=True, stream_options={"include_usage": True}, reasoning_effort="xhigh"))  # fmt: skip
    assert asked.system == "Be brief.\n\nBe kind."
    assert asked.said == (Said("user", "one\ntwo"), Said("assistant", "Hello"), Said("user", "three"))
    assert (asked.stream, asked.include_usage, asked.thinking) == (True, True, "high")


def test_a_response_takes_text_and_items_alike():
    assert of_responses({"model": "a", "input": "Hi"}).said == (Said("user", "Hi"),)
    asked = of_responses({
        "model": "a", "instructions": "Be brief.", "previous_response_id": "resp_1",
        "input": [
            {"role": "user", "content": "one"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "id": "m", "status": "completed",
             "content": [{"type": "output_text", "text": "Hello", "annotations": []}]},
            {"role": "user", "content": [{"type": "input_text", "text": "two"}]},
        ],
    })  # fmt: skip
    assert asked.said == (Said("user", "one"), Said("assistant", "Hello"), Said("user", "two"))
    assert (asked.system, asked.previous) == ("Be brief.", "resp_1")


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({}, ""),
        ({"user": "u"}, "u"),
        ({"user": "u", "metadata": {"session": "s"}}, "s"),
        ({"metadata": {"other": "s"}}, ""),
    ],
)
def test_the_clients_own_name_of_a_conversation(more, key):
    assert of_chat(chat(**more)).key == key


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": HI}, "model"),
        ({"model": "a"}, "messages"),
        (chat(model=1), "model"),
        (chat(messages=[]), "messages"),
        (chat(messages=[{"role": "user", "content": 1}]), "messages[0].content"),
        (chat(messages=[{"role": "user", "content": " \n"}]), "messages"),
        (chat(messages=[*HI, {"role": "assistant", "content": "so"}]), "messages"),
        (chat(messages=[{"role": "tool", "content": "x"}, *HI]), "messages[0].role"),
        (chat(messages=[{"content": "x"}]), "messages[0].role"),
        (chat(messages=[{"role": "assistant", "tool_calls": [{"id": "1"}]}, *HI]), "messages[0].tool_calls"),
        (chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
         "messages[0].content[0]"),
        (chat(stream="yes"), "stream"),
        (chat(user="u" * 513), "user"),
        (chat(metadata={"session": ""}), "metadata.session"),
        (chat(metadata={"a": 1}), "metadata[...]"),
        (chat(reasoning_effort="a lot"), "reasoning_effort"),
    ],
)  # fmt: skip
def test_a_wrong_chat_is_told_by_the_place_that_is_wrong(body, param):
    with pytest.raises(Refused) as refused:
        of_chat(body)
    assert refused.value.param == param
    assert refused.value.status == 400
    assert param in refused.value.message


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}, "input[0].type"),
        ({"input": [{"type": "input_image"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": ""}, "input"),
        ({"input": "x", "conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
        ({"input": "x", "reasoning": {"effort": "a lot"}}, "reasoning.effort"),
    ],
)
def test_a_wrong_response_is_told_by_the_place_that_is_wrong(more, param):
    with pytest.raises(Refused) as refused:
        of_responses({"model": "a", **more})
    assert refused.value.param == param
