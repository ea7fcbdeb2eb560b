"""Bodies of `tools.*`: a plugin's tools, which agents ask for, and its hooks, which llm workers run."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from beige.messages.base import Argument, Body, Method


class ToolCall(Body):
    tool: Annotated[str, Meta(min_length=1, max_length=64)]
    args: Annotated[list[Argument], Meta(max_length=4000)] = []
    cwd: Annotated[str, Meta(max_length=4096)] = ""


class ToolResult(Body):
    success: bool
    output: str = ""
    error: str = ""
    exit_code: int = 0


# --- hooks ------------------------------------------------------------------------------------------

HookName = Literal["prePrompt", "postResponse", "modelSwitched"]
HookText = Annotated[str, Meta(max_length=512 * 1024)]
Model = Annotated[str, Meta(max_length=512)]
"""`provider/model`."""


class HookCall(Body):
    """One hook of one plugin, for the prompt that the parent call serves."""

    plugin: Annotated[str, Meta(min_length=1, max_length=32)]
    hook: HookName
    text: HookText = ""
    """prePrompt: the prompt; postResponse: the whole text of the model's answer."""
    model: Model = ""
    """prePrompt: the one asked first; else the one that answered."""
    sender: Annotated[str, Meta(max_length=128)] = ""
    """As `PromptRequest.sender`."""
    previous_model: Model = ""
    """modelSwitched: the one that should have answered."""
    reason: Annotated[str, Meta(max_length=4096)] = ""
    """modelSwitched: why it didn't."""
    tell: bool = False
    """Nobody waits for the plugin: the call is answered once it is handed over."""


class HookResult(Body):
    state: Literal["unchanged", "replaced", "refused", "told"]
    text: HookText = ""
    """Replaced: what stands in the text's place."""
    reason: Annotated[str, Meta(max_length=2000)] = ""
    """Refused: why, for the user."""


METHODS = {
    "tools.call": Method(ToolCall, ToolResult),
    "tools.hook": Method(HookCall, HookResult),
}
