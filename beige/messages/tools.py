"""Bodies of `tools.*`."""

from __future__ import annotations

from typing import Annotated

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


METHODS = {
    "tools.call": Method(ToolCall, ToolResult),
}
