"""What a plugin may register, and what is said about one that can't be loaded."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from beige.messages.tools import HookName
from beige.pluginhost.loader import LoadProblem, Registrar, load_plugin
from beige.plugins import PluginContext, Provides

TEMPLATE = """
class Plugin:
    def register(self, reg):
        {register}
def create_plugin(config, ctx):
    return Plugin()
"""


@pytest.fixture(autouse=True)
def _clean_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def load(
    directory: Path, source: str, tools: list[str], hooks: tuple[HookName, ...] = ()
) -> dict[str, float]:
    (directory / "plugin.py").write_text(source)
    ctx = PluginContext("p", directory, logging.getLogger("plugin"))
    registrar = Registrar(Provides(tools=tuple(tools), hooks=hooks))
    load_plugin(directory, registrar, {}, ctx)
    return {name: tool.timeout_s for name, tool in registrar.tools.items()}


def test_registered_tools_carry_their_limit(tmp_path: Path) -> None:
    source = TEMPLATE.format(
        register="reg.tool('p', lambda c: 'x'); reg.tool('p-q', lambda c: 'x', timeout_s=5)"
    )
    assert load(tmp_path, source, ["p", "p-q"]) == {"p": 60.0, "p-q": 5.0}


def test_neighbouring_modules_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("name = 'p'")
    source = "import beside_it\n" + TEMPLATE.format(register="reg.tool(beside_it.name, print)")
    assert list(load(tmp_path, source, ["p"])) == ["p"]


@pytest.mark.parametrize(
    ("register", "problem"),
    [
        pytest.param("reg.tool('git', print)", "registers tool 'git', which its plugin.json", id="foreign"),
        pytest.param("reg.tool('p', print); reg.tool('p', print)", "registers tool 'p' twice", id="twice"),
        pytest.param("reg.tool('p', 5)", "the handler of tool 'p' can't be called", id="handler"),
        pytest.param("reg.tool('p', print, timeout_s=0)", "timeout_s of tool 'p' must be above 0", id="zero"),
        pytest.param("reg.tool('p', print, timeout_s=1e9)", "at most 600", id="too-long"),
        pytest.param("pass", "lists tool 'p', which it does not register", id="nothing"),
        pytest.param("raise ValueError('/secret')", "register raised ValueError", id="raises"),
        pytest.param("raise SystemExit(3)", "register raised SystemExit", id="exits"),
    ],
)  # fmt: skip
def test_a_registration_that_is_refused(tmp_path: Path, register: str, problem: str) -> None:
    with pytest.raises(LoadProblem) as caught:
        load(tmp_path, TEMPLATE.format(register=register), ["p"])
    assert problem in str(caught.value)
    assert "/secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("register", "problem"),
    [
        pytest.param("reg.hook('postResponse', print)", "registers hook 'postResponse', which", id="foreign"),
        pytest.param(
            "reg.hook('prePrompt', print); reg.hook('prePrompt', print)", "hook 'prePrompt' twice", id="twice"
        ),
        pytest.param("reg.hook('prePrompt', 5)", "hook 'prePrompt' can't be called", id="handler"),
        pytest.param("pass", "lists hook 'prePrompt', which it does not register", id="nothing"),
    ],
)
def test_a_hook_that_is_refused(tmp_path: Path, register: str, problem: str) -> None:
    with pytest.raises(LoadProblem) as caught:
        load(tmp_path, TEMPLATE.format(register=register), [], ("prePrompt",))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        pytest.param("import nothing_of_this_name", "importing it raised ModuleNotFoundError", id="import"),
        pytest.param("this is no python", "importing it raised SyntaxError", id="syntax"),
        pytest.param("", "plugin.py defines no create_plugin(config, ctx)", id="empty"),
        pytest.param("create_plugin = 5", "defines no create_plugin", id="not-callable"),
        pytest.param("def create_plugin(): pass", "create_plugin raised TypeError", id="signature"),
        pytest.param("def create_plugin(c, x): pass", "has no register(reg)", id="returns-none"),
    ],
)
def test_a_plugin_that_cannot_be_created(tmp_path: Path, source: str, problem: str) -> None:
    with pytest.raises(LoadProblem) as caught:
        load(tmp_path, source, ["p"])
    assert problem in str(caught.value)


def test_a_missing_entry_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadProblem, match=r"plugin\.py is missing"):
        load_plugin(
            tmp_path, Registrar(Provides()), {}, PluginContext("p", tmp_path, logging.getLogger("plugin"))
        )


@pytest.mark.parametrize(
    ("register", "problem"),
    [
        pytest.param("reg.channel('q', A())", "registers channel 'q', which its plugin.json", id="foreign"),
        pytest.param("reg.channel('p', A()); reg.channel('p', A())", "channel 'p' twice", id="twice"),
        pytest.param("reg.channel('p', B())", "channel 'p' has no async def run(ctx)", id="not-async"),
        pytest.param("reg.channel('p', 5)", "channel 'p' has no async def run(ctx)", id="no-run"),
        pytest.param("pass", "lists channel 'p', which it does not register", id="nothing"),
    ],
)
def test_a_channel_that_is_refused(tmp_path: Path, register: str, problem: str) -> None:
    adapters = "class A:\n    async def run(self, ctx): pass\nclass B:\n    def run(self, ctx): pass\n"
    (tmp_path / "plugin.py").write_text(adapters + TEMPLATE.format(register=register))
    ctx = PluginContext("p", tmp_path, logging.getLogger("plugin"))
    with pytest.raises(LoadProblem) as caught:
        load_plugin(tmp_path, Registrar(Provides(channels=("p",))), {}, ctx)
    assert problem in str(caught.value)
