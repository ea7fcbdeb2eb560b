import json

import pytest

from beige.config import AgentConfig
from services.llm.turn.prompt import PluginTools, plugin_tools, system_prompt

KV = PluginTools("kv", "A key-value store.", ("kv",), ("get", "set"), "# kv\n\nUse `kv set KEY VALUE`.")


def agent(**more):
    return AgentConfig.model_validate(
        {"model": {"provider": "p", "model": "m"}, "tools": ("kv",), "sandbox": {"image": "x"}, **more}
    )


def test_it_says_who_where_and_with_what():
    text = system_prompt("travel", agent(), [KV])
    parts = [
        "You are travel",
        "/workspace",
        "`read`, `write`, `patch` and `exec`",
        "no network",
        "600 seconds",
    ]
    for part in [*parts, "A key-value store.", "Commands: get, set", "Use `kv set KEY VALUE`."]:
        assert part in text


def test_what_is_absent_leaves_no_heading():
    text = system_prompt("travel", agent(), [])
    assert "#" not in text


def test_the_operators_words_and_agents_md_are_told_apart():
    text = system_prompt("travel", agent(systemPrompt="Speak French."), [], "Build with make.\n")
    assert text.index("# Instructions of your operator\n\nSpeak French.") < text.index("# AGENTS.md")
    assert "as it was when this session began:\n\nBuild with make." in text


@pytest.mark.parametrize(("tools", "found"), [(["demo"], ("demo",)), ([], None)])
def test_only_allowed_tools_are_described(house, tools, found):
    from beige.config import load

    directory = house.home.root / "plugins" / "demo"
    directory.mkdir(parents=True)
    (directory / "plugin.json").write_text(
        '{"name": "demo", "description": "Shows.", "provides": {"tools": ["demo", "demo_other"]}}'
    )
    (directory / "plugin.py").write_text("")
    (directory / "SKILL.md").write_text("Be skilled.")
    config = json.loads(
        """{ "llm": { "providers": { "script": { "api": "scripted", "script": "script.json5" } } },
             "plugins": { "demo": { "path": "plugins/demo" } },
             "agents": { "travel": { "model": { "provider": "script", "model": "x" }, "tools": [],
                                     "sandbox": { "image": "i" } } } }"""
    )
    config["agents"]["travel"]["tools"] = tools
    house.home.config.write_text(json.dumps(config))
    config = load(house.home)
    described = plugin_tools(house.home, config, config.agents["travel"])
    assert [plugin.tools for plugin in described] == ([found] if found else [])
    if found:
        assert described[0].skill.strip() == "Be skilled."
