"""Who listens to an agent's prompts is written down, and can be what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from beige.config import load
from beige.errors import ConfigError
from beige.paths import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    for name, provides in (("guard", {"hooks": ["prePrompt"]}), ("kv", {"tools": ["kv"]})):
        directory = tmp_path / "plugins" / name
        directory.mkdir(parents=True)
        manifest = {"name": name, "description": "for tests", "provides": provides}
        (directory / "plugin.json").write_text(json.dumps(manifest))
    (tmp_path / "script.json5").write_text("[]")
    return Home(tmp_path)


def write(home: Home, hooks: Any) -> None:
    model = {"provider": "s", "model": "m"}
    agent = {"model": model, "tools": [], "sandbox": {"image": "i"}, "hooks": hooks}
    home.config.write_text(json.dumps({
        "llm": {"providers": {"s": {"api": "scripted", "script": "script.json5"}}},
        "plugins": {name: {"path": f"plugins/{name}"} for name in ("guard", "kv")},
        "agents": {"travel": agent},
    }))  # fmt: skip


def test_a_hook_refuses_when_it_fails_unless_it_is_written(home: Home) -> None:
    write(home, [{"plugin": "guard", "on": ["prePrompt"]}])
    (entry,) = load(home).agents["travel"].hooks
    assert (entry.on, entry.on_failure, entry.timeout_s) == (("prePrompt",), "refuse", 10.0)
    assert not entry.observe


@pytest.mark.parametrize(
    ("hooks", "line"),
    [
        pytest.param(["guard"], "hooks[0]: must be an object, not a string", id="name alone"),
        pytest.param([{"plugin": "guard"}], "hooks[0].on: is missing; it is: what it listens to", id="no on"),
        pytest.param([{"plugin": "guard", "on": []}], "hooks[0].on: ", id="nothing"),
        pytest.param(
            [{"plugin": "gard", "on": ["prePrompt"]}],
            "hooks[0].plugin: no such plugin: 'gard'; did you mean \"guard\"?",
            id="unknown plugin",
        ),
        pytest.param(
            [{"plugin": "guard", "on": ["preprompt"]}],
            "hooks[0].on[0]: 'preprompt' is not allowed; did you mean \"prePrompt\"?",
            id="unknown hook",
        ),
        pytest.param(
            [{"plugin": "guard", "on": ["prePrompt", "postResponse"]}],
            "hooks[0].on[1]: plugin 'guard' has no hook 'postResponse'; its plugin.json lists: prePrompt",
            id="not provided",
        ),
        pytest.param(
            [{"plugin": "kv", "on": ["prePrompt"]}],
            "hooks[0].on[0]: plugin 'kv' has no hook 'prePrompt'; its plugin.json lists: none",
            id="tools alone",
        ),
        pytest.param(
            [{"plugin": "guard", "on": ["prePrompt"]}, {"plugin": "guard", "on": ["prePrompt"]}],
            "hooks[1].on[0]: 'guard' listens to 'prePrompt' already; remove one of them",
            id="twice",
        ),
        pytest.param(
            [{"plugin": "guard", "on": ["prePrompt"], "onFailure": "open"}],
            "hooks[0].onFailure: 'open' is not allowed; allowed: continue, refuse",
            id="failure",
        ),
        pytest.param(
            [{"plugin": "guard", "on": ["prePrompt"], "observe": True, "onFailure": "refuse"}],
            "hooks[0].onFailure: has no effect: nobody waits for its answer; remove it",
            id="observes",
        ),
        pytest.param(
            [{"plugin": "guard", "on": ["prePrompt"], "timeoutS": 0}],
            "hooks[0].timeoutS: should be greater than 0",
            id="no time",
        ),
    ],
)
def test_a_wrong_entry_names_its_place(home: Home, hooks: Any, line: str) -> None:
    write(home, hooks)
    with pytest.raises(ConfigError) as caught:
        load(home)
    assert f"agents.travel.{line}" in str(caught.value)
