"""All plugins of the configuration: which one has a tool or a hook, and how its answer crosses the bus."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from beige.config import Config
from beige.errors import Denied, NotFound
from beige.messages.tools import HookCall, HookResult, ToolCall, ToolResult
from beige.paths import Home, private_directory
from beige.plugins import Manifest, deep_merge, load_manifest, resolve_plugin_dir
from beige.wire import HookUse, Outcome
from services.tools import frames
from services.tools.plugin_process import PluginProcess

Listening = tuple[str, str, str]
"""Agent, plugin, hook."""


class Host:
    """Owns the plugins' processes."""

    def __init__(
        self, plugins: Iterable[tuple[Manifest, PluginProcess]], listening: Mapping[Listening, float]
    ) -> None:
        """`listening`: who listens to what, and how long each may take, in seconds."""
        self._plugins: dict[str, PluginProcess] = {}
        self._owner: dict[str, PluginProcess] = {}
        self._listening = listening
        for manifest, process in plugins:
            self._plugins[manifest.name] = process
            self._owner.update(dict.fromkeys(manifest.provides.tools, process))

    async def start(self) -> None:
        """Returns when each plugin is loaded or known not to be."""
        await asyncio.gather(*(plugin.start() for plugin in self._plugins.values()))

    async def close(self) -> None:
        await asyncio.gather(*(plugin.close() for plugin in self._plugins.values()))

    async def call(
        self, call: ToolCall, outcome: Outcome, *, agent: str, session: str = "", channel: str = ""
    ) -> ToolResult:
        """Fills in `outcome` for the audit record. Errors: as `PluginProcess.call`, and NotFound."""
        outcome.target = "gateway"
        plugin = self._owner.get(call.tool)
        if plugin is None:
            raise NotFound(f"no such tool: '{call.tool}'")
        done = await plugin.call(
            call.tool, call.args, agent=agent, session=session, channel=channel, cwd=call.cwd
        )
        outcome.exit_code = done.exit_code
        outcome.output_bytes = len(done.output.encode()) + len(done.error.encode())
        outcome.error = done.error[:256]
        return ToolResult(done.exit_code == 0, done.output, done.error, done.exit_code)

    async def hook(
        self, call: HookCall, outcome: Outcome, *, agent: str, session: str = "", channel: str = ""
    ) -> HookResult:
        """As `call`. Denied if the plugin does not listen to the agent: policy's word, said once more beside
        the plugins (`tests/attacks/test_hooks.py`)."""
        timeout_s = self._listening.get((agent, call.plugin, call.hook))
        if timeout_s is None:
            raise Denied(f"plugin '{call.plugin}' does not listen to {call.hook} of agent '{agent}'")
        plugin = self._plugins[call.plugin]
        if call.tell or call.hook == "modelSwitched":
            plugin.tell(call, agent=agent, session=session, channel=channel, timeout_s=timeout_s)
            outcome.hook = HookUse("told")
            return HookResult("told")
        answer = await plugin.hook(call, agent=agent, session=session, channel=channel, timeout_s=timeout_s)
        return _hook_result(answer, outcome)


def _hook_result(answer: frames.Answered, outcome: Outcome) -> HookResult:
    match answer.state:
        case "replaced":
            text = answer.text.encode()
            outcome.hook = HookUse("replaced", hashlib.sha256(text).hexdigest())
            outcome.output_bytes = len(text)
            return HookResult("replaced", text=answer.text)
        case "refused":
            outcome.hook, outcome.error = HookUse("refused"), f"refused: {answer.reason}"[:256]
            return HookResult("refused", reason=answer.reason)
    outcome.hook = HookUse("unchanged")
    return HookResult("unchanged")


def build(config: Config, home: Home, log: logging.Logger) -> Host:
    """The host for `config`, not started. ConfigError if a manifest is wrong."""
    private_directory(home.data)
    private_directory(home.data / "plugins")
    found = [_plugin(config, name, home, log) for name in config.plugins]
    used = [
        (manifest, process)
        for manifest, process in found
        if manifest.provides.tools or manifest.provides.hooks
    ]
    return Host(used, listening(config))


def listening(config: Config) -> dict[Listening, float]:
    """Who listens to what, and the longest it may take, in seconds."""
    return {
        (name, entry.plugin, hook): entry.timeout_s
        for name, agent in config.agents.items()
        for entry in agent.hooks
        for hook in entry.on
    }


def _plugin(config: Config, name: str, home: Home, log: logging.Logger) -> tuple[Manifest, PluginProcess]:
    directory = resolve_plugin_dir(home, config.plugins[name])
    manifest = load_manifest(directory, name)
    data_dir = home.data / "plugins" / name
    private_directory(data_dir)
    load = load_frame(config, manifest, directory, data_dir)
    return manifest, PluginProcess(load, log.getChild(name))


def load_frame(config: Config, manifest: Manifest, directory: Path, data_dir: Path) -> frames.Load:
    """What the plugin's process needs to know, and nothing of another plugin's."""
    name = manifest.name
    base = config.plugins[name].config
    overrides = {
        agent: deep_merge(base, entry.plugin_configs[name])
        for agent, entry in config.agents.items()
        if name in entry.plugin_configs
    }
    return frames.Load(name, str(directory), str(data_dir), manifest.provides, base, overrides)
