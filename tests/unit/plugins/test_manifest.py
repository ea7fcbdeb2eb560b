"""plugin.json: what is accepted, and that every refusal names the file and the field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.errors import ConfigError
from beige.paths import Home, bundled_plugins_dir
from beige.plugins import (
    Manifest,
    Provides,
    channel_owners,
    load_manifest,
    resolve_plugin_dir,
    tool_name_problem,
    tool_owners,
)
from beige.plugins.manifest import MAX_MANIFEST

GIT: dict[str, Any] = {
    "name": "git",
    "description": "Git version control operations.",
    "commands": ["status", "commit", "log"],
    "provides": {"tools": ["git"]},
}


@dataclass(frozen=True)
class Entry:
    path: str


def write(directory: Path, content: Any) -> Path:
    directory.mkdir(exist_ok=True)
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (directory / "plugin.json").write_bytes(text)
    return directory


def test_the_seeds_manifest_is_accepted(tmp_path: Path) -> None:
    manifest = load_manifest(write(tmp_path / "git", GIT))
    assert manifest.name == "git"
    assert manifest.commands == ("status", "commit", "log")
    assert manifest.provides.tools == ("git",)


def test_the_name_follows_the_config_key_not_the_directory(tmp_path: Path) -> None:
    directory = write(tmp_path / "my-fork", GIT)
    assert load_manifest(directory, "git").name == "git"
    with pytest.raises(ConfigError, match=r"plugin\.json: name: is 'git'; expected: 'my-fork'"):
        load_manifest(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"name": 3}, "plugin.json: name: Expected `str`, got `int`", id="type"),
        pytest.param({"name": "Git"}, "plugin.json: name: 'Git' is not a plugin name", id="name"),
        pytest.param({"hooks": []}, "unknown field `hooks`; allowed: name, description", id="unknown"),
        pytest.param(
            {"provides": {"tools": ["git"], "skills": []}},
            "plugin.json: provides: Object contains unknown field `skills`",
            id="unknown-below",
        ),
        pytest.param({"provides": {}}, "plugin.json: provides: lists nothing; allowed: tools", id="nothing"),
        pytest.param(
            {"provides": {"channels": ["git", "git"]}},
            "channels[1]: 'git' is listed twice",
            id="twice-channel",
        ),
        pytest.param(
            {"provides": {"channels": ["telegram"]}},
            "channels[0]: 'telegram' must be 'git'",
            id="foreign-channel",
        ),
        pytest.param(
            {"provides": {"channels": ["git:1"]}},
            "channels[0]: 'git:1' is not a channel name",
            id="channel-name",
        ),
        pytest.param(
            {"provides": {"tools": ["git", 1]}}, "provides.tools[1]: Expected `str`", id="tool-type"
        ),
        pytest.param(
            {"provides": {"tools": ["git", "git"]}}, "provides.tools[1]: 'git' is listed twice", id="twice"
        ),
        pytest.param(
            {"provides": {"tools": ["kv"]}}, "provides.tools[0]: 'kv' must be 'git' or start", id="foreign"
        ),
        pytest.param(
            {"provides": {"hooks": ["preprompt"]}}, "hooks[0]: Invalid enum value 'preprompt'", id="hook"
        ),
        pytest.param(
            {"provides": {"hooks": ["prePrompt", "prePrompt"]}},
            "hooks[1]: 'prePrompt' is listed twice",
            id="twice-hook",
        ),
        pytest.param({"description": ""}, "description: Expected `str` of length >= 1", id="empty"),
        pytest.param({"commands": [1]}, "commands[0]: Expected `str`", id="command"),
    ],
)
def test_a_wrong_manifest_names_file_and_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    directory = write(tmp_path / "git", GIT | change)
    with pytest.raises(ConfigError) as caught:
        load_manifest(directory)
    assert message in str(caught.value)
    assert str(directory / "plugin.json") in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"[", b"\xff\xfe", b"[" * 20_000, b" " * (MAX_MANIFEST + 1), b'{"name": "\xff"}']
)
def test_bytes_that_are_no_manifest_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match="plugin"):
        load_manifest(write(tmp_path / "git", content))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = write(tmp_path_factory.getbasetemp() / "garbage", content)
    with pytest.raises(ConfigError):
        load_manifest(directory)


def test_a_missing_directory_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"git: is not a directory; bundled: .*bundled:kv"):
        load_manifest(tmp_path / "git")
    (tmp_path / "git").mkdir()
    with pytest.raises(ConfigError, match=r"plugin\.json: cannot be read \(No such file or directory\)"):
        load_manifest(tmp_path / "git")


@pytest.mark.parametrize("tool", ["git", "git_log", "git-log"])
def test_tools_named_after_their_plugin_are_allowed(tool: str) -> None:
    assert tool_name_problem("git", tool) == ""


@pytest.mark.parametrize(
    "tool", ["kv", "gitlog", "exec", "", "../git", "git ", "git\n", "Git", "git-" + "x" * 61]
)
def test_foreign_tool_names_are_refused(tool: str) -> None:
    assert tool_name_problem("git", tool)


def test_a_plugin_named_like_a_core_tool_cannot_take_its_name() -> None:
    assert "core tool" in tool_name_problem("exec", "exec")


def test_two_plugins_cannot_provide_one_tool() -> None:
    first = Manifest("a", "x", load_manifest(bundled_plugins_dir() / "kv").provides)
    second = Manifest("b", "x", first.provides)
    assert tool_owners([first]) == {"kv": "a"}
    with pytest.raises(ConfigError, match=r"plugins\.b: tool 'kv' is already provided by plugin 'a'"):
        tool_owners([first, second])


def test_two_plugins_cannot_provide_one_channel() -> None:
    first, second = (Manifest(name, "x", Provides(channels=("chat",))) for name in ("a", "b"))
    assert channel_owners([first]) == {"chat": "a"}
    with pytest.raises(ConfigError, match=r"plugins\.b: channel 'chat' is already provided by plugin 'a'"):
        channel_owners([first, second])


def test_paths_are_relative_to_the_config_file(tmp_path: Path) -> None:
    home = Home(tmp_path / "home with space")
    assert resolve_plugin_dir(home, Entry("./plugins/git")) == home.root / "plugins/git"
    assert resolve_plugin_dir(home, Entry("/opt/git")) == Path("/opt/git")


def test_bundled_plugins_are_found_and_valid(tmp_path: Path) -> None:
    directory = resolve_plugin_dir(Home(tmp_path), Entry("bundled:kv"))
    assert load_manifest(directory, "kv").provides.tools == ("kv",)


@pytest.mark.parametrize("path", ["bundled:", "bundled:../kv", "bundled:/etc", "bundled:KV"])
def test_bundled_names_cannot_leave_their_directory(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="names no bundled plugin"):
        resolve_plugin_dir(Home(tmp_path), Entry(path))
