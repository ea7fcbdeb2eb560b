"""Where variables are replaced, and which process needs which."""

from __future__ import annotations

from typing import Any

import pytest

from beige.config.variables import resolve, variables_for
from beige.supervisor.launch import MODULES

RAW: dict[str, Any] = {
    "llm": {"providers": {"x": {"apiKey": "${KEY}", "headers": {"a": "${HEADER:-h}"}}}},
    "plugins": {"git": {"path": "${PLUGINS}/git", "config": {"deep": [{"token": "Bearer ${TOKEN}"}]}}},
    "agents": {"a": {"systemPrompt": "in ${CITY:-Rome}", "pluginConfigs": {"git": {"user": "${GIT_USER}"}}}},
}


def test_each_program_needs_its_own_section_and_the_plain_ones() -> None:
    needed = variables_for(RAW)
    assert set(needed) == set(MODULES)
    assert needed["broker"] == set()
    assert needed["llm"] == {"KEY", "HEADER", "PLUGINS", "CITY"}
    assert needed["tools"] == {"TOKEN", "GIT_USER", "PLUGINS", "CITY"}
    for program in set(MODULES) - {"llm", "tools", "broker"}:
        assert needed[program] == {"PLUGINS", "CITY"}


def test_only_the_sections_asked_for_are_resolved() -> None:
    environ = {"KEY": "k", "TOKEN": "t", "PLUGINS": "/p", "GIT_USER": "u"}
    resolved, problems = resolve(RAW, frozenset({"tools"}), environ)
    assert problems == []
    assert resolved["llm"] == RAW["llm"]
    assert resolved["plugins"]["git"] == {"path": "/p/git", "config": {"deep": [{"token": "Bearer t"}]}}
    assert resolved["agents"]["a"] == {"systemPrompt": "in Rome", "pluginConfigs": {"git": {"user": "u"}}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("plain $HOME {x}", "plain $HOME {x}", id="no-variable"),
        pytest.param("${A}-${A}", "1-1", id="twice"),
        pytest.param("${B:-two words}", "two words", id="default"),
        pytest.param("${B:-}", "", id="empty-default"),
        pytest.param("${EMPTY:-d}", "d", id="empty-takes-default"),
        pytest.param("${A:-d}", "1", id="set-beats-default"),
        pytest.param("$${A}", "${A}", id="escaped"),
        pytest.param("${NESTED}", "${A}", id="values-are-not-resolved-again"),
    ],
)
def test_variables_are_replaced(text: str, value: str) -> None:
    environ = {"A": "1", "EMPTY": "", "NESTED": "${A}"}
    assert resolve({"k": text}, frozenset(), environ) == ({"k": value}, [])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("${B}", "k[0]: the variable B is not set; set it, or write ${B:-default}"),
        ("${EMPTY}", "k[0]: the variable EMPTY is empty; set it, or write ${EMPTY:-default}"),
        ("${1B}", "k[0]: holds a broken variable; write ${NAME} or ${NAME:-default}"),
        ("${B", "k[0]: holds a broken variable; write ${NAME} or ${NAME:-default}"),
    ],
)
def test_an_unset_or_broken_variable_is_named(text: str, line: str) -> None:
    _, problems = resolve({"k": [text]}, frozenset(), {"EMPTY": ""})
    assert len(problems) == 1
    assert str(problems[0]).startswith(line)
