"""Session settings over a real broker: two llm workers that share them, real SDKs, the simulator."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from beige.errors import Denied, Malformed, NotFound
from beige.messages.llm import PromptRequest
from beige.messages.session_settings import SessionSettings, SettingsRequest
from beige.supervisor.environment import minimal
from beige.testing import House, short_home
from tests.processes.llm_stage import Stage, texts
from tests.simulator.replies import Tool, reply
from tests.simulator.server import Simulator

PLAIN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
CLAUDE, GLM = "anthropic/claude-haiku-4-5", "zai/glm-5"


def config(url):
    refs = [{"provider": "anthropic", "model": "claude-haiku-4-5"}, {"provider": "zai", "model": "glm-5"}]
    agent = {"model": refs[0], "fallbackModels": refs[1:], "tools": [], "sandbox": {"image": "x"}}
    providers = {
        "anthropic": {"apiKey": "${ANTHROPIC_API_KEY}", "baseUrl": url},
        "zai": {"api": "openai-completions", "apiKey": "${ZAI_API_KEY}", "baseUrl": f"{url}/v1"},
    }
    return {"llm": {"providers": providers}, "agents": {"pair": agent}}


@pytest.fixture(scope="module")
def running():
    with Simulator() as simulator, short_home() as home:
        home.config.write_text(json.dumps(config(simulator.url)))
        with House(home) as house:
            stage = Stage(house, simulator)
            stage.start()
            stage.start("llm/1")
            yield stage


@pytest.fixture
def stage(running):
    running.simulator.reset()
    (running.home.sessions / "session-settings.json").unlink(missing_ok=True)
    yield running
    assert running.simulator.problems == []


def settings(stage, session="s1", agent="pair", **body):
    """One request; the answer's settings as (value, layer), and its notices."""

    async def ask(cli):
        return await cli.call("llm.settings", SettingsRequest(**body), agent=agent, session=session)

    answer = stage.run(ask)
    return {name: (found.value, found.layer) for name, found in answer.settings.items()}, answer.notices


def prompt(stage, session="s1", **defaults):
    async def ask(cli):
        body = PromptRequest("hello", SessionSettings(**defaults))
        events = []
        async with cli.open("llm.prompt", body, agent="pair", session=session, ttl_s=60) as stream:
            async for event in stream:
                events.append(event)
            return await stream.result(), events

    return stage.run(ask)


def test_the_three_layers_and_back_again(stage):
    assert settings(stage) == ({
        "verbose": (False, "system"), "streaming": (True, "system"),
        "model": (CLAUDE, "system"), "thinkingLevel": ("off", "system"),
    }, [])  # fmt: skip
    found, _ = settings(stage, set=SessionSettings(verbose=True), defaults=SessionSettings(streaming=False))
    assert (found["verbose"], found["streaming"]) == ((True, "session"), (False, "channel"))
    found, _ = settings(stage, session="s2")
    assert (found["verbose"], found["streaming"]) == ((False, "system"), (True, "system"))
    found, _ = settings(stage, unset=["verbose"], defaults=SessionSettings(verbose=True))
    assert found["verbose"] == (True, "channel")


def test_the_sessions_model_is_asked_first_by_every_worker_and_the_primary_is_its_fallback(stage):
    settings(stage, set=SessionSettings(model=GLM))
    stage.simulator.answer(*[reply("from glm")] * 2)
    assert prompt(stage)[0].model == GLM
    stage.house.kill("llm")
    try:
        assert prompt(stage)[0].model == GLM
    finally:
        stage.start("llm")
    assert [request.body["model"] for request in stage.simulator.requests] == ["glm-5", "glm-5"]
    stage.simulator.reset()
    stage.simulator.answer(reply("as configured"))
    assert prompt(stage, session="other")[0].model == CLAUDE


def test_a_channels_default_holds_until_the_session_says_otherwise(stage):
    stage.simulator.answer(*[reply("x")] * 2)
    assert prompt(stage, model=GLM)[0].model == GLM
    settings(stage, set=SessionSettings(model=CLAUDE))
    assert prompt(stage, model=GLM)[0].model == CLAUDE


def test_the_thinking_level_reaches_the_model(stage):
    stage.simulator.answer(*[reply("x")] * 2)
    prompt(stage, model=GLM)
    settings(stage, set=SessionSettings(model=GLM, thinking_level="high"))
    prompt(stage)
    efforts = [request.body.get("reasoning_effort") for request in stage.simulator.requests]
    assert efforts == [None, "high"]


def test_a_model_of_somebody_elses_choice_is_refused_and_changes_nothing(stage):
    with pytest.raises(Malformed, match=f"{CLAUDE}, {GLM}"):
        settings(stage, set=SessionSettings(model="anthropic/claude-opus-9", verbose=True))
    with pytest.raises(Malformed, match="is not one of"):
        settings(stage, defaults=SessionSettings(model="zai/other"))
    with pytest.raises(Malformed, match="is not one of"):
        prompt(stage, model="zai/other")
    assert settings(stage)[0]["verbose"] == (False, "system")
    assert stage.simulator.requests == []


@pytest.mark.parametrize(
    ("agent", "session", "error"),
    [
        ("nobody", "s1", NotFound),
        ("pair", "", Malformed),
        ("pair", "../x", Malformed),
        ("pair", "a/b", Malformed),
    ],
)
def test_settings_belong_to_a_session_of_an_agent(stage, agent, session, error):
    with pytest.raises(error):
        settings(stage, session=session, agent=agent, set=SessionSettings(verbose=True))
    assert not (stage.home.sessions / "session-settings.json").exists()


def test_a_damaged_file_is_told_and_costs_no_prompt(stage):
    path = stage.home.sessions / "session-settings.json"
    path.write_text('{"v": 1, "sessions": {')
    stage.simulator.answer(reply("still here"))
    result, events = prompt(stage, session="damaged")
    assert result.text == "still here"
    assert "session-settings.json is damaged" in texts(events, "notice")
    assert path.read_text() == '{"v": 1, "sessions": {'


def test_changes_through_two_workers_at_once_are_all_kept(stage):
    async def many(cli):
        body = SettingsRequest(set=SessionSettings(verbose=True))
        await asyncio.gather(*(
            cli.call("llm.settings", body, agent="pair", session=f"m{n}", key=f"pair/m{n}") for n in range(40)
        ))  # fmt: skip

    stage.run(many)
    kept = json.loads((stage.home.sessions / "session-settings.json").read_text())["sessions"]
    assert kept == {f"pair/m{n}": {"verbose": True} for n in range(40)}


def test_only_operators_change_settings(stage):
    from beige.bus import Bus

    async def as_bridge():
        async with Bus(stage.home, "bridge/0") as bus:
            await bus.call("llm.settings", SettingsRequest(), agent="pair", session="s1")

    with pytest.raises(Denied):
        asyncio.run(as_bridge())


def beige(stage, *arguments):
    return subprocess.run(
        [sys.executable, "-P", "-m", "beige.cli", *arguments],
        env=minimal(stage.home, PLAIN), cwd="/", capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_the_command_line_shows_and_changes_them(stage):
    done = beige(stage, "sessions", "settings", "pair", "cli", f"model={GLM}", "verbose=off")
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["SETTING", "VALUE", "FROM"],
        ["verbose", "off", "session"],
        ["streaming", "on", "system"],
        ["model", GLM, "session"],
        ["thinkingLevel", "off", "system"],
    ]
    done = beige(stage, "sessions", "settings", "pair", "cli", "--unset", "model", "--json")
    assert json.loads(done.stdout)["settings"]["model"] == {"value": CLAUDE, "layer": "system"}
    done = beige(stage, "sessions", "settings", "pair", "cli", "model=zai/other")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{CLAUDE}, {GLM}" in done.stderr


def test_a_prompt_is_shown_as_its_session_wants_it(stage):
    stage.simulator.answer(
        *[reply("Look.", Tool("exec", {"command": "echo tool-output"})), reply("Done.")] * 2
    )
    done = beige(stage, "prompt", "pair", "go", "--session", "shown")
    assert (done.stdout, "> exec echo" in done.stderr) == ("Look.\nDone.\n", True)
    settings(stage, session="shown", set=SessionSettings(verbose=False, streaming=False))
    done = beige(stage, "prompt", "pair", "go", "--session", "shown")
    assert (done.stdout, "tool-output" in done.stderr) == ("Look.\nDone.\n", False)
    assert "1 tool call" in done.stderr
