"""Imports and creates one plugin, inside the plugin's own process, and checks what it registers."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from beige.messages.tools import HookName
from beige.plugins import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, HookHandler, PluginContext, ToolHandler
from beige.plugins.manifest import ENTRY, Provides


class LoadProblem(Exception):
    """The plugin can't be used. The text may be shown to an agent; the cause goes to the log."""


@dataclass(frozen=True)
class Tool:
    handler: ToolHandler
    timeout_s: float


@dataclass
class Registrar:
    """The `PluginRegistrar` given to plugins. All that plugin.json lists is registered in each process of the
    plugin, whichever part of it is used there."""

    provides: Provides
    tools: dict[str, Tool] = field(default_factory=dict)
    hooks: dict[HookName, HookHandler] = field(default_factory=dict)
    channels: dict[str, Any] = field(default_factory=dict)
    """Foreign objects with an `async def run(ctx)`."""

    def tool(
        self, name: str, handler: ToolHandler, *, description: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        if name not in self.provides.tools:
            raise LoadProblem(f"it registers tool {name!r:.80}, which its plugin.json does not list")
        if name in self.tools:
            raise LoadProblem(f"it registers tool {name!r} twice")
        if not callable(handler):
            raise LoadProblem(f"the handler of tool {name!r} can't be called")
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise LoadProblem(f"timeout_s of tool {name!r} must be above 0 and at most {MAX_TIMEOUT_S:g}")
        self.tools[name] = Tool(handler, float(timeout_s))

    def hook(self, name: HookName, handler: HookHandler) -> None:
        if name not in self.provides.hooks:
            raise LoadProblem(f"it registers hook {name!r:.80}, which its plugin.json does not list")
        if name in self.hooks:
            raise LoadProblem(f"it registers hook {name!r} twice")
        if not callable(handler):
            raise LoadProblem(f"the handler of hook {name!r} can't be called")
        self.hooks[name] = handler

    def channel(self, name: str, adapter: Any) -> None:
        if name not in self.provides.channels:
            raise LoadProblem(f"it registers channel {name!r:.80}, which its plugin.json does not list")
        if name in self.channels:
            raise LoadProblem(f"it registers channel {name!r} twice")
        if not inspect.iscoroutinefunction(getattr(adapter, "run", None)):
            raise LoadProblem(f"the adapter of channel {name!r} has no async def run(ctx)")
        self.channels[name] = adapter

    def missing(self) -> str:
        """Something that plugin.json lists and that was not registered, in words; empty if there is none."""
        tools = (f"tool {name!r}" for name in self.provides.tools if name not in self.tools)
        channels = (f"channel {name!r}" for name in self.provides.channels if name not in self.channels)
        hooks = (f"hook {name!r}" for name in self.provides.hooks if name not in self.hooks)
        return next(chain(tools, channels, hooks), "")


def load_plugin(directory: Path, registrar: Registrar, config: dict[str, Any], ctx: PluginContext) -> Any:
    """The plugin, which has registered itself. LoadProblem, with the plugin's own exception as cause."""
    create = getattr(_import(directory, ctx.name), "create_plugin", None)
    if not callable(create):
        raise LoadProblem(f"{ENTRY} defines no create_plugin(config, ctx)")
    plugin = _guarded("create_plugin", create, config, ctx)
    register = getattr(plugin, "register", None)
    if not callable(register):
        raise LoadProblem("what create_plugin returned has no register(reg)")
    _guarded("register", register, registrar)
    if missing := registrar.missing():
        raise LoadProblem(f"its plugin.json lists {missing}, which it does not register")
    return plugin


def type_name(value: object) -> str:
    """A foreign type's name, safe to show."""
    name = str(type(value).__name__)
    return "".join(c for c in name if c.isascii() and (c.isalnum() or c == "_"))[:60] or "value"


def _import(directory: Path, name: str) -> ModuleType:
    """Run plugin.py. Its neighbours can be imported by their plain names: the process is its own."""
    file = directory / ENTRY
    if not file.is_file():
        raise LoadProblem(f"{ENTRY} is missing")
    sys.path.insert(0, str(directory))
    module_name = f"beige_plugin_{name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    _guarded("importing it", spec.loader.exec_module, module)
    return module


def _guarded(step: str, function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except LoadProblem:
        raise
    except (Exception, SystemExit) as error:
        raise LoadProblem(f"{step} raised {type_name(error)}") from error
