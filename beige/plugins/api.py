"""What a plugin's author imports: the context given, the calls received, the results returned.

A plugin is a directory with `plugin.json` and `plugin.py`; the latter defines

    def create_plugin(config: dict[str, Any], ctx: PluginContext) -> Plugin: ...

`docs/plugins.md` is the guide; `plugins/kv` the example. Channels: `beige.plugins.channels`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from beige.messages.tools import HookName
from beige.plugins.hooks import HookHandler

if TYPE_CHECKING:
    from beige.plugins.channels import ChannelAdapter

DEFAULT_TIMEOUT_S = 60.0
MAX_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class PluginContext:
    """What the host gives a plugin when it is created."""

    name: str
    data_dir: Path
    """A private directory, kept across restarts: this plugin's, which several processes may use at once
    (`scale.tools`), or, in a channel's process, that channel's."""
    log: logging.Logger
    """Goes to the log of the service that runs it, never to an agent."""


@dataclass(frozen=True)
class ToolInvocation:
    """One governed call: policy allowed it and audit wrote it down."""

    tool: str
    args: tuple[str, ...]
    """The agent's words: untrusted."""
    agent: str
    """Who calls; the bridge's word, not the agent's."""
    session: str = ""
    channel: str = ""
    cwd: str = ""
    """The caller's directory inside its sandbox, as the agent claims it: untrusted."""
    config: dict[str, Any] = field(default_factory=dict)
    """`plugins.<name>.config` with `agents.<agent>.pluginConfigs.<name>` merged over it."""


@dataclass(frozen=True)
class ToolOutput:
    """The result of a call: printed by the caller's launcher on stdout, stderr and as its exit status.

    `exit_code` 0..255. An `error` with exit code 0 counts as exit code 1.
    """

    output: str = ""
    error: str = ""
    exit_code: int = 0


class ToolError(Exception):
    """Raise it to refuse a call with a message that the agent may read.

    The text of any other exception goes to the log alone, because it may hold paths and secrets.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


class UsageError(ToolError):
    """The arguments are wrong; exit code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 2)


ToolResultLike = ToolOutput | str | None
ToolHandler = Callable[[ToolInvocation], Awaitable[ToolResultLike] | ToolResultLike]
"""`async def` runs on the plugin's event loop and must not block; `def` runs in a thread."""


class PluginRegistrar(Protocol):
    """Passed to `Plugin.register`."""

    def tool(
        self, name: str, handler: ToolHandler, *, description: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Offer `name`, which `provides.tools` in plugin.json must list. A call is ended after
        `timeout_s` seconds (at most `MAX_TIMEOUT_S`). ValueError if the name may not be offered."""

    def hook(self, name: HookName, handler: HookHandler) -> None:
        """Listen to `name`, which `provides.hooks` in plugin.json must list. Called for the agents whose
        `hooks` name the plugin, and ended after the time written there."""

    def channel(self, name: str, adapter: ChannelAdapter) -> None:
        """Offer the channel `name`, which `provides.channels` must list. It runs where `channels` in the
        configuration says so, in a process of its own; elsewhere this does nothing."""


class Plugin(Protocol):
    """What `create_plugin` returns. It may also have `close()`, plain or async, called at the end."""

    def register(self, reg: PluginRegistrar) -> None: ...


class CreatePlugin(Protocol):
    """The entry point's shape."""

    def __call__(self, config: dict[str, Any], ctx: PluginContext) -> Plugin: ...
