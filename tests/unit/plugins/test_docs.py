"""What docs/plugins.md and docs/socket-protocol.md show is what the code does."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pytest

from beige.errors import Denied
from beige.messages.tools import ToolResult
from beige.pluginhost.loader import Registrar, load_plugin
from beige.plugins import (
    HookInvocation,
    PluginContext,
    Provides,
    Refuse,
    Replace,
    ToolInvocation,
    load_manifest,
)
from socket_bridge import protocol

DOCS = Path(__file__).parents[3] / "docs"


def indented(text: str, start: str) -> str:
    """The indented block that begins with `start`."""
    found = re.search(rf"^    {re.escape(start)}.*\n(    .*\n)*", text, re.MULTILINE)
    assert found, f"the page no longer shows {start!r}"
    return found.group()


def test_the_example_plugin_loads_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    page = (DOCS / "plugins.md").read_text()
    (tmp_path / "plugin.json").write_text(indented(page, '{ "name": "git"'))
    source = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert source
    (tmp_path / "plugin.py").write_text(source.group(1))
    manifest = load_manifest(tmp_path, "git")
    config = {"push": {"force": False}}
    context = PluginContext("git", tmp_path, logging.getLogger("plugin"))
    registrar = Registrar(manifest.provides)
    plugin = load_plugin(tmp_path, registrar, config, context)
    del sys.modules["beige_plugin_git"]
    assert registrar.tools["git"].timeout_s == 120
    assert plugin.git(ToolInvocation("git", ("status",), "travel", config=config)).exit_code == 0


def test_the_example_channel_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = re.search(r"```python\n(.*?)```", (DOCS / "channels.md").read_text(), re.DOTALL)
    assert source
    (tmp_path / "plugin.py").write_text(source.group(1))
    registrar = Registrar(Provides(channels=("rig",)))
    load_plugin(tmp_path, registrar, {}, PluginContext("rig", tmp_path, logging.getLogger("plugin")))
    del sys.modules["beige_plugin_rig"]
    assert list(registrar.channels) == ["rig"]


def test_the_example_hook_loads_and_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = re.search(r"```py\n(.*?)```", (DOCS / "plugins.md").read_text(), re.DOTALL)
    assert source
    ending = "\ndef today(): return 'Sunday'\ndef create_plugin(config, ctx): return Guard()\n"
    (tmp_path / "plugin.py").write_text(source.group(1) + ending)
    registrar = Registrar(Provides(hooks=("prePrompt",)))
    load_plugin(tmp_path, registrar, {}, PluginContext("example", tmp_path, logging.getLogger("plugin")))
    del sys.modules["beige_plugin_example"]

    def answer(text: str, agent: str = "other") -> object:
        call = HookInvocation("prePrompt", agent, "s", "c", text, "p/m")
        return registrar.hooks["prePrompt"](call)

    assert answer("hello") is None
    assert answer("4111 1111 1111 1111") == Refuse("no card numbers, please")
    assert answer("hello", "travel") == Replace("hello\n\nToday is Sunday.")


def test_the_lines_of_the_socket_protocol_are_the_codes_own() -> None:
    page = (DOCS / "socket-protocol.md").read_text()
    request = protocol.parse(indented(page, '{"type":"tool_request"').strip().encode())
    assert (request.tool, request.args) == ("git", ["set", "mykey", "myvalue"])
    ok, denied = indented(page, '{"type":"tool_response"').strip().splitlines()
    assert protocol.result_line(ToolResult(True, "OK")).decode().strip() == ok.strip()
    reason = json.loads(denied)["error"]
    assert protocol.error_line(Denied(reason)).decode().strip() == denied.strip()


def test_the_table_of_exit_codes_is_complete() -> None:
    page = (DOCS / "socket-protocol.md").read_text()
    shown = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert shown == set(protocol.EXIT_CODES.values())
