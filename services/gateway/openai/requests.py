"""Decides what a request of OpenAI's APIs asks for: their two shapes become one. Pure.

Everything in a body is a stranger's word. None of it names an owner: whose conversation it can be
follows from the token alone (`recognise`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from beige.messages.session_settings import ThinkingLevel
from services.gateway.openai.errors import Refused
from services.gateway.openai.parameters import Api, check

MAX_MESSAGES = 4096
Key = Annotated[str, Meta(max_length=512)]
Role = Literal["user", "assistant"]
_TEXT = frozenset({"text", "input_text", "output_text"})
_PLACE = re.compile(r"(.*) - at `\$\.?(.*)`\Z", re.DOTALL)
_EFFORT: dict[str, ThinkingLevel] = {
    "none": "off", "minimal": "minimal", "low": "low", "medium": "medium", "high": "high", "xhigh": "high",
    "max": "high",
}  # fmt: skip


@dataclass(frozen=True)
class Said:
    role: Role
    text: str


@dataclass(frozen=True)
class Asked:
    agent: str
    """As the client wrote it: not checked."""
    system: str
    """The client's system and developer messages; empty: none."""
    said: tuple[Said, ...]
    """Users' and assistants' messages, oldest first; the last one is a user's."""
    stream: bool = False
    include_usage: bool = False
    key: str = ""
    """The client's own name for the conversation; `previous` goes before it."""
    previous: str = ""
    """Id of the response to go on after."""
    thinking: ThinkingLevel | None = None
    instructions: str = ""
    conversation: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """As given; responses repeats them."""


class Part(msgspec.Struct):
    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """Of chat completions; also a message item of responses."""

    role: str = ""
    content: str | list[Part] | None = None
    type: str = "message"
    tool_calls: Any = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatBody(msgspec.Struct):
    model: str
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Key | None = None
    metadata: dict[str, str] | None = None
    reasoning_effort: str | None = None


class Conversation(msgspec.Struct):
    id: Key


class Reasoning(msgspec.Struct):
    effort: str | None = None


class ResponsesBody(msgspec.Struct):
    model: str
    input: str | Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    stream: bool | None = None
    previous_response_id: Key | None = None
    conversation: Key | Conversation | None = None
    user: Key | None = None
    metadata: dict[str, str] | None = None
    reasoning: Reasoning | None = None


def of_chat(body: dict[str, Any]) -> Asked:
    """Refused names the parameter that is wrong, missing or can't be honoured."""
    read = _read("chat", body, ChatBody)
    system, said = _messages(read.messages, "messages")
    options = read.stream_options or StreamOptions()
    return Asked(
        read.model, system, said, bool(read.stream), bool(options.include_usage),
        _key(read.metadata, read.user), thinking=_thinking(read.reasoning_effort, "reasoning_effort"),
    )  # fmt: skip


def of_responses(body: dict[str, Any]) -> Asked:
    """Refused names the parameter that is wrong, missing or can't be honoured."""
    read = _read("responses", body, ResponsesBody)
    given = [Message("user", read.input)] if isinstance(read.input, str) else read.input
    system, said = _messages(given, "input")
    named = read.conversation
    conversation = named.id if isinstance(named, Conversation) else named or ""
    if conversation and read.previous_response_id:
        text = "previous_response_id: excludes conversation"
        raise Refused(text, "previous_response_id", "mutually_exclusive_parameters")
    effort = read.reasoning.effort if read.reasoning else None
    return Asked(
        read.model, "\n\n".join(filter(None, (read.instructions, system))), said, bool(read.stream),
        key=_key(read.metadata, conversation or read.user),
        previous=read.previous_response_id or "", thinking=_thinking(effort, "reasoning.effort"),
        instructions=read.instructions or "", conversation=conversation, metadata=read.metadata or {},
    )  # fmt: skip


def _read(api: Api, body: dict[str, Any], kind: type[Any]) -> Any:
    check(api, body)
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        match = _PLACE.match(str(error))
        what, where = (match[1], match[2]) if match else (str(error), "")
        missing = re.search(r"missing required field `(\w+)`", what)
        param = where or (missing[1] if missing else None)
        raise Refused(f"{param or 'body'}: {what}", param, "invalid_type") from None


def _messages(messages: Sequence[Message], param: str) -> tuple[str, tuple[Said, ...]]:
    system: list[str] = []
    said: list[Said] = []
    for number, message in enumerate(messages):
        where = f"{param}[{number}]"
        if message.type == "reasoning":  # sent back by clients that keep the whole output
            continue
        _check_kind(message, where)
        text = _text(message.content, f"{where}.content")
        if message.role in ("system", "developer"):
            system.append(text)
        elif message.role == "user":
            said.append(Said("user", text))
        else:
            said.append(Said("assistant", text))
    if not said or said[-1].role != "user" or not said[-1].text.strip():
        raise Refused(f"{param}: the last message must be a user's, and have text", param)
    return "\n\n".join(filter(None, system)), tuple(said)


def _check_kind(message: Message, where: str) -> None:
    if message.type != "message":
        raise Refused(f"{where}.type: {message.type[:64]!r} is not supported", f"{where}.type")
    if message.tool_calls:
        text = f"{where}.tool_calls: an agent's tools run on its own side; a client's calls are not supported"
        raise Refused(text, f"{where}.tool_calls")
    if message.role not in ("system", "developer", "user", "assistant"):
        raise Refused(f"{where}.role: {message.role[:64]!r} is not supported", f"{where}.role")


def _text(content: str | list[Part] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for number, part in enumerate(content):
        if part.type not in _TEXT:
            text = f"{where}[{number}]: {part.type[:64]!r} is not supported, only text is"
            raise Refused(text, f"{where}[{number}]", "unsupported_content")
    return "\n".join(part.text or "" for part in content)


def _key(metadata: Mapping[str, str] | None, other: str | None) -> str:
    session = (metadata or {}).get("session")
    if session is None:
        return other or ""
    if not 0 < len(session) <= 512:
        raise Refused("metadata.session: must have 1 to 512 characters", "metadata.session")
    return session


def _thinking(effort: str | None, param: str) -> ThinkingLevel | None:
    if effort is None:
        return None
    if effort not in _EFFORT:
        raise Refused(f"{param}: {effort[:64]!r} is none of {', '.join(_EFFORT)}", param)
    return _EFFORT[effort]
