"""Reads `plugin.json` and decides whether it is valid; finds a plugin's directory.

{ "name": "git", "description": "Git version control operations.",
  "commands": ["status", "commit", "log"], "provides": { "tools": ["git"] } }
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct

from beige.errors import ConfigError
from beige.messages import CORE_TOOLS
from beige.messages.tools import HookName
from beige.paths import Home, bundled_plugins_dir

MANIFEST = "plugin.json"
ENTRY = "plugin.py"
MAX_MANIFEST = 64 * 1024
BUNDLED = "bundled:"


_PLUGIN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}\Z")
_TOOL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_AT = re.compile(r" - at `\$\.?(?P<field>[^`]*)`\Z")

Line = Annotated[str, Meta(max_length=200)]


class Provides(Struct, frozen=True, forbid_unknown_fields=True):
    """What the plugin offers. At least one thing."""

    tools: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    hooks: tuple[HookName, ...] = ()


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """A valid plugin.json."""

    name: str
    description: Annotated[str, Meta(min_length=1, max_length=1000)]
    provides: Provides
    commands: Annotated[tuple[Line, ...], Meta(max_length=100)] = ()
    """Words for documentation: what the tools can be asked to do."""


class HasPath(Protocol):
    """`beige.config.PluginConfig`, as far as it matters here."""

    @property
    def path(self) -> str: ...


def resolve_plugin_dir(home: Home, plugin: HasPath) -> Path:
    """`bundled:NAME` is shipped with beige; anything else is relative to the config file's directory.

    ConfigError if a bundled name is not a plain name. Whether the directory exists is
    `load_manifest`'s business.
    """
    if not plugin.path.startswith(BUNDLED):
        return (home.config.parent / Path(plugin.path).expanduser()).absolute()
    name = plugin.path.removeprefix(BUNDLED)
    if not _PLUGIN_NAME.match(name):
        raise ConfigError("path", f"{plugin.path!r} names no bundled plugin", f"allowed: {_bundled_names()}")
    return bundled_plugins_dir() / name


def load_manifest(directory: Path, key: str = "") -> Manifest:
    """The valid manifest in `directory`. Its name must be `key` (the config's `plugins.<key>`), or,
    without one, the directory's. ConfigError names the file, the field and what is allowed."""
    file = directory / MANIFEST
    manifest = _decode(file, _read(directory, file))
    _check_names(file, manifest, key or directory.name)
    return manifest


def tool_owners(manifests: Iterable[Manifest]) -> dict[str, str]:
    """Which plugin provides each tool. ConfigError if two claim the same."""
    return _owners((m.name, "tool", tool) for m in manifests for tool in m.provides.tools)


def channel_owners(manifests: Iterable[Manifest]) -> dict[str, str]:
    """Which plugin provides each channel. ConfigError if two claim the same."""
    return _owners((m.name, "channel", channel) for m in manifests for channel in m.provides.channels)


def _owners(provided: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    owners: dict[str, str] = {}
    for plugin, kind, name in provided:
        other = owners.setdefault(name, plugin)
        if other != plugin:
            raise ConfigError(f"plugins.{plugin}", f"{kind} {name!r} is already provided by plugin {other!r}")
    return owners


def tool_name_problem(plugin: str, tool: str) -> str:
    """Why plugin `plugin` may not offer `tool`; empty if it may.

    Stops a plugin that would answer in another plugin's, or a core tool's, name
    (`tests/unit/plugins/test_manifest.py::test_foreign_tool_names_are_refused`).
    """
    if not _TOOL_NAME.match(tool):
        return f"{tool!r} is not a tool name (a-z, 0-9, - and _, at most 64, not starting with - or _)"
    if tool in CORE_TOOLS:
        return f"{tool!r} is the name of a core tool"
    return _foreign(plugin, tool)


def channel_name_problem(plugin: str, channel: str) -> str:
    """Why plugin `plugin` may not offer `channel`; empty if it may."""
    if not _PLUGIN_NAME.match(channel):
        return f"{channel!r} is not a channel name (a-z, 0-9, - and _, at most 32, not starting with - or _)"
    return _foreign(plugin, channel)


def _foreign(plugin: str, name: str) -> str:
    if name != plugin and not name.startswith((f"{plugin}_", f"{plugin}-")):
        return f"{name!r} must be {plugin!r} or start with '{plugin}_' or '{plugin}-'"
    return ""


def _read(directory: Path, file: Path) -> bytes:
    if not directory.is_dir():
        raise ConfigError(str(directory), "is not a directory", f"bundled: {_bundled_names()}")
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_MANIFEST + 1)
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read ({error.strerror})") from None
    if len(content) > MAX_MANIFEST:
        raise ConfigError(str(file), f"is larger than {MAX_MANIFEST} bytes")
    return content


def _decode(file: Path, content: bytes) -> Manifest:
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        text = str(error)
    at = _AT.search(text)
    place = f"{file}: {at['field']}" if at and at["field"] else str(file)
    raise ConfigError(place, _AT.sub("", text), "allowed: name, description, commands, provides")


def _check_names(file: Path, manifest: Manifest, expected: str) -> None:
    if not _PLUGIN_NAME.match(manifest.name):
        raise ConfigError(f"{file}: name", f"{manifest.name!r} is not a plugin name",
                          "a-z, 0-9, - and _, at most 32, not starting with - or _")  # fmt: skip
    if manifest.name != expected:
        raise ConfigError(
            f"{file}: name", f"is {manifest.name!r}", f"expected: {expected!r}, its name in the config"
        )
    provides = manifest.provides
    if provides == Provides():
        raise ConfigError(f"{file}: provides", "lists nothing", "allowed: tools, channels, hooks")
    _check_provided(file, manifest.name, "tools", provides.tools, tool_name_problem)
    _check_provided(file, manifest.name, "channels", provides.channels, channel_name_problem)
    _check_provided(file, manifest.name, "hooks", provides.hooks, lambda *_: "")


def _check_provided(
    file: Path, plugin: str, kind: str, names: tuple[str, ...], problem_of: Callable[[str, str], str]
) -> None:
    for index, name in enumerate(names):
        problem = problem_of(plugin, name)
        if not problem and name in names[:index]:
            problem = f"{name!r} is listed twice"
        if problem:
            raise ConfigError(f"{file}: provides.{kind}[{index}]", problem)


def _bundled_names() -> str:
    found = sorted(entry.parent.name for entry in bundled_plugins_dir().glob(f"*/{MANIFEST}"))
    return ", ".join(f"{BUNDLED}{name}" for name in found) or "none"
