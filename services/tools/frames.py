"""What the plugin host and a plugin's own process say to each other about tools and hooks. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from beige.messages.tools import HookName, HookText
from beige.pluginhost.frames import MAX_FROM_PLUGIN, MAX_TO_PLUGIN, Close, Frame, FrameReader, Log, NotLoaded
from beige.plugins.manifest import Provides

# --- host to plugin ---------------------------------------------------------------------------------


class Load(Frame):
    """The first frame. Secrets ride here, never in arguments or the environment."""

    name: str
    directory: str
    data_dir: str
    provides: Provides
    config: dict[str, Any]
    agent_configs: dict[str, dict[str, Any]]
    """Per agent that overrides something: the merged config."""


class Call(Frame):
    id: int
    tool: str
    args: list[str]
    agent: str
    session: str
    channel: str
    cwd: str


class Hook(Frame):
    """One run of a hook; `id` is from the same row as a call's."""

    id: int
    hook: HookName
    agent: str
    session: str
    channel: str
    text: str
    model: str
    sender: str
    previous_model: str
    reason: str


class Cancel(Frame):
    """The call's result is no longer wanted. Answered by `CancelSeen`."""

    id: int


# --- plugin to host ---------------------------------------------------------------------------------


class Loaded(Frame):
    timeouts: dict[str, Annotated[float, Meta(gt=0)]]
    """Per registered tool: the longest a call may take, in seconds."""


class Done(Frame):
    id: int
    output: str
    error: str
    exit_code: Annotated[int, Meta(ge=0, le=255)]


class Answered(Frame):
    """What came of a `Hook`."""

    id: int
    state: Literal["unchanged", "replaced", "refused", "failed"]
    text: HookText = ""
    reason: Annotated[str, Meta(max_length=2000)] = ""
    """Refused: the plugin's words. Failed: ours, as in `NotLoaded`."""


class CancelSeen(Frame):
    """The plugin's event loop is alive."""

    id: int


class Stuck(Frame):
    """`count` cancelled calls have not ended."""

    count: int


ToPlugin = Load | Call | Hook | Cancel | Close
FromPlugin = Loaded | NotLoaded | Done | Answered | CancelSeen | Stuck | Log


def host_reader() -> FrameReader[FromPlugin]:
    return FrameReader(FromPlugin, MAX_FROM_PLUGIN)


def plugin_reader() -> FrameReader[ToPlugin]:
    return FrameReader(ToPlugin, MAX_TO_PLUGIN)
