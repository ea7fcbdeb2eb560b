"""Bodies of `llm.chat`: one model call for a client that runs its own loop. The agent is in the header."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from beige.messages.base import Body, Method

Words = Annotated[str, Meta(max_length=512 * 1024)]
ToolId = Annotated[str, Meta(min_length=1, max_length=128)]
ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}(?!\n)$")]


class ChatCall(Body):
    """A call of one of the client's tools, as a model made it."""

    id: ToolId
    name: ToolName
    args: dict[str, Any] = {}


class ChatMessage(Body):
    """role        fields used
    user        content
    assistant   content, tool_calls
    tool        content (the result), tool_id, is_error
    """

    role: Literal["user", "assistant", "tool"]
    content: Words = ""
    tool_calls: Annotated[list[ChatCall], Meta(max_length=64)] = []
    tool_id: Annotated[str, Meta(max_length=128)] = ""
    is_error: bool = False


class ChatTool(Body):
    """A tool of the client's. Nothing of ours runs it."""

    name: ToolName
    description: Annotated[str, Meta(max_length=16 * 1024)] = ""
    parameters: dict[str, Any] = {}
    """JSON Schema of its arguments, an object."""


class ChatRequest(Body):
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=2000)]
    """The whole conversation; the last one is the user's or a tool's."""
    system: Words = ""
    tools: Annotated[list[ChatTool], Meta(max_length=128)] = []
    model: Annotated[str, Meta(max_length=512)] = ""
    """`provider/model`, one of the agent's own: asked first. Else its `model`."""


class ChatEvent(Body):
    """kind            fields used
    text_delta      text
    thinking_delta  text
    tool_call       tool_id, tool, args: complete
    notice          text
    model_fallback  text (what failed and why), model (asked next); what came before is void
    """

    kind: Literal["text_delta", "thinking_delta", "tool_call", "notice", "model_fallback"]
    text: str = ""
    tool_id: str = ""
    tool: str = ""
    args: dict[str, Any] = {}
    model: str = ""


class ChatResult(Body):
    text: str
    """The whole answer, without its tool calls."""
    model: str
    """Who answered: `provider/model`."""
    stop_reason: str
    tool_calls: int = 0
    scripted: bool = False
    """True when a script, not a language model, spoke."""
    usage: dict[str, int] = {}
    cost: float | None = None
    """US dollars; None if the price is not configured."""


METHODS = {"llm.chat": Method(ChatRequest, ChatResult, ChatEvent)}
