"""The section `channels`: what is refused, where its secrets go, and when its process runs."""

import json

import pytest

from beige.config import load, variables_for
from beige.errors import ConfigError
from beige.supervisor.programs import bus_users, programs

AGENT = {"model": {"provider": "p", "model": "m"}, "tools": [], "sandbox": {"image": "i"}}
MANIFEST = {"name": "rig", "description": "for tests", "provides": {"channels": ["rig", "rig-two"]}}


def raw(**channels):
    return {
        "llm": {"providers": {"p": {"api": "openai-completions", "baseUrl": "http://localhost"}}},
        "plugins": {"rig": {"path": "rig"}},
        "agents": {"travel": AGENT, "home": AGENT},
        "channels": channels,
    }


def written(home, config):
    (home.root / "rig").mkdir()
    (home.root / "rig" / "plugin.json").write_text(json.dumps(MANIFEST))
    home.config.write_text(json.dumps(config))
    return home


def test_a_channel_is_its_own_plugins_unless_it_says_another(home):
    config = load(
        written(home, raw(rig={"agents": ["travel"]}, two={"adapter": "rig-two", "agents": ["home"]}))
    )
    assert config.channels["rig"].agents == ("travel",)
    assert (config.channels["rig"].defaults.verbose, config.channels["two"].adapter) == (None, "rig-two")


@pytest.mark.parametrize(
    ("channels", "problem"),
    [
        pytest.param({"rig": {}}, "channels.rig.agents: is missing", id="agents"),
        pytest.param(
            {"rig": {"agents": []}}, "channels.rig.agents: tuple should have at least 1", id="no-agent"
        ),
        pytest.param(
            {"rig": {"agents": ["trave"]}},
            "channels.rig.agents[0]: no such agent: 'trave'; did you mean \"travel\"?",
            id="unknown-agent",
        ),
        pytest.param(
            {"telegram": {"agents": ["travel"]}},
            "channels.telegram: no plugin provides the channel 'telegram'; allowed: rig, rig-two",
            id="no-adapter",
        ),
        pytest.param(
            {"rig": {"adapter": "rig-three", "agents": ["travel"]}},
            "channels.rig.adapter: no plugin provides the channel 'rig-three'",
            id="unknown-adapter",
        ),
        pytest.param(
            {"cli": {"adapter": "rig", "agents": ["travel"]}},
            "channels.cli: 'cli' is the name of a way",
            id="cli",
        ),
        pytest.param(
            {"http": {"adapter": "rig", "agents": ["travel"]}}, "channels.http: 'http' is the name", id="http"
        ),
        pytest.param({"a:b": {"agents": ["travel"]}}, 'channels["a:b"]: has the wrong form', id="name"),
        pytest.param(
            {"rig": {"agents": ["travel"], "defaults": {"verbose": "on"}}},
            "channels.rig.defaults.verbose: must be true or false",
            id="default",
        ),
    ],
)
def test_what_is_refused(home, channels, problem):
    with pytest.raises(ConfigError) as caught:
        load(written(home, raw(**channels)))
    assert problem in str(caught.value)


def test_a_channels_secrets_go_to_the_channels_process_alone(home):
    config = raw(rig={"agents": ["travel"], "config": {"token": "${BOT_TOKEN}"}})
    needed = variables_for(config)
    assert {program for program, names in needed.items() if "BOT_TOKEN" in names} == {"channels"}
    written(home, config)
    environ = {"BOT_TOKEN": "s"}
    assert load(home, frozenset({"channels"}), environ).channels["rig"].config == {"token": "s"}
    assert load(home, frozenset({"tools"}), environ).channels["rig"].config == {"token": "${BOT_TOKEN}"}


def test_its_process_runs_only_when_there_is_a_channel_and_once(home):
    with_one = load(written(home, raw(rig={"agents": ["travel"]})))
    assert [p.count for p in programs(with_one.scale, with_one.switched_off) if p.name == "channels"] == [1]
    assert "channels/0" in bus_users(with_one.scale, with_one.switched_off)
    home.config.write_text(json.dumps(raw()))
    without = load(home)
    assert "channels" not in [p.name for p in programs(without.scale, without.switched_off)]
    assert "channels/0" not in bus_users(without.scale, without.switched_off)
