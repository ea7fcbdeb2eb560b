"""The generated configuration, as supervisord's own parser reads it."""

from __future__ import annotations

import configparser
import shlex
import sys
from pathlib import Path

from beige.config import ScaleConfig
from beige.paths import Home
from beige.supervisor.conf import render, supervisord_environ
from beige.supervisor.launch import MODULES
from beige.supervisor.programs import bus_users, programs

HOME = Home(Path("/srv/a b%c ;d"))


def sections(scale: ScaleConfig) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser()
    parser.read_string(render(scale))
    prefix = "program:"
    return {
        name.removeprefix(prefix): dict(parser[name]) for name in parser.sections() if name.startswith(prefix)
    }


def test_every_program_is_started_once_broker_first() -> None:
    found = sections(ScaleConfig())
    assert list(found) == list(MODULES)
    assert [int(found[name]["priority"]) for name in found] == sorted(
        int(s["priority"]) for s in found.values()
    )
    assert {section["numprocs"] for section in found.values()} == {"1"}


def test_scale_multiplies_only_what_it_names() -> None:
    found = sections(ScaleConfig(llm=3, tools=2))
    assert {name: section["numprocs"] for name, section in found.items() if section["numprocs"] != "1"} == {
        "llm": "3",
        "tools": "2",
    }
    assert "%(process_num)d" in found["llm"]["process_name"]


def test_no_path_stands_in_the_file() -> None:
    lines = render(ScaleConfig()).splitlines()
    assert {line for line in lines if "=/" in line} == {"directory=/"}


def test_its_environment_holds_nothing_secret() -> None:
    environ = {"PATH": "/bin", "ANTHROPIC_API_KEY": "k", "BEIGE_X": "x", "LANG": "C"}
    found = supervisord_environ(HOME, environ)
    assert set(found) - {"PYTHONPATH"} == {
        "PATH", "LANG", "BEIGE_HOME", "BEIGE_PYTHON", "BEIGE_RUN", "BEIGE_RUN_LOGS", "BEIGE_LOGS",
        "BEIGE_ENV_DIR",
    }  # fmt: skip
    assert shlex.split(found["BEIGE_PYTHON"]) == [sys.executable]


def test_process_names_are_log_names_and_users_follow_the_scale() -> None:
    by_name = {program.name: program for program in programs(ScaleConfig(llm=2))}
    assert by_name["llm"].processes == ("llm-0", "llm-1")
    assert by_name["tools"].processes == ("tools",)
    assert by_name["broker"].users == ()
    assert set(bus_users(ScaleConfig(llm=2))) == {
        "gateway/0", "policy/0", "audit/0", "sandbox/0", "tools/0", "egress/0", "bridge/0",
        "llm/0", "llm/1", "tap/0", "channels/0", "cli/0",
    }  # fmt: skip


def test_a_program_that_is_switched_off_neither_runs_nor_has_a_key() -> None:
    without = frozenset({"gateway"})
    assert "[program:gateway]" in render(ScaleConfig())
    assert "[program:gateway]" not in render(ScaleConfig(), without)
    assert set(bus_users(ScaleConfig())) - set(bus_users(ScaleConfig(), without)) == {"gateway/0"}
