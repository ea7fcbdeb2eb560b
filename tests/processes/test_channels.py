"""Channels in their house: a plugin's adapter in its own process speaks to agents, and what happens to it."""

import json
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.processes.channel_stage import new_channel_stage, wait_until


@pytest.fixture(scope="module")
def running():
    with new_channel_stage() as stage:
        stage.start()
        yield stage


@pytest.fixture
def stage(running):
    for program in ("channels", "llm"):
        if program not in running.house.processes:
            running.start(program)
    running.clean()
    return running


def kinds(events):
    return {event["kind"] for event in events}


def test_a_prompt_is_answered_and_written_down_with_channel_and_sender(stage):
    result, events = stage.say("run it", "chat-7", sender="alice")
    assert (result["text"], result["session"]) == ("It printed hi", "rig:chat-7")
    assert kinds(events) == {"accepted", "notice", "message_end"}
    (prompt,) = (e for e in stage.session("travel", "rig:chat-7") if e["type"] == "prompt")
    assert (prompt["text"], prompt["channel"], prompt["sender"]) == ("run it", "rig", "alice")
    calls = [
        line for line in stage.audit() if line.get("session") == "rig:chat-7" and line.get("tool") == "exec"
    ]
    assert calls and {(line["agent"], line["channel"]) for line in calls} == {("travel", "rig")}


def test_events_are_those_that_were_asked_for(stage):
    _, events = stage.say("run it", deltas=True)
    assert "".join(e["text"] for e in events if e["kind"] == "text_delta") == "Running.It printed hi"
    assert "tool_start" not in kinds(events)
    stage.ask("settings", conversation="loud", set={"verbose": True})
    _, events = stage.say("run it again", "loud")
    assert [e["args"]["command"] for e in events if e["kind"] == "tool_start"] == ["echo hi # run it again"]
    assert "text_delta" not in kinds(events)


def test_three_layers_of_settings_the_highest_wins(stage):
    def verbose(channel):
        found = stage.ask("status", channel, conversation="c1", agent="home")["settings"]["verbose"]
        return found["value"], found["layer"]

    assert verbose("rig") == (False, "system")
    assert verbose("two") == (True, "channel")
    stage.ask("settings", "two", conversation="c1", set={"verbose": False})
    assert verbose("two") == (False, "session")
    assert verbose("rig") == (False, "system")
    stage.ask("settings", "two", conversation="c1", unset=["verbose"])
    assert verbose("two") == (True, "channel")


def test_a_conversation_goes_on_until_a_fresh_session_is_asked_for(stage):
    status = stage.ask("status", conversation="going")
    assert (status["agent"], status["session"], "info" in status) == ("travel", "rig:going", False)
    stage.say("one", "going")
    stage.say("two", "going")
    assert stage.ask("status", conversation="going")["info"]["prompts"] == 2
    fresh = stage.ask("new_session", conversation="going")
    assert fresh.startswith("rig:going:")
    assert stage.say("three", "going")[0]["session"] == fresh
    assert stage.say("four", "gone")[0]["session"] == "rig:gone"
    assert stage.say("five", "going", agent="home")[0]["session"] == "rig:going"
    stage.house.stop("channels")
    stage.start("channels")
    assert stage.say("six", "going")[0]["session"] == fresh


def test_one_prompt_of_a_conversation_runs_and_four_wait(stage):
    with stage.asking("prompt", conversation="c1", text="long") as first:
        next(first)
        stage.wait_for_effect("start sleep 60 # long")
        told = []
        others = [threading.Thread(target=lambda n=n: told.append(stage.say(f"w{n}")[0])) for n in range(6)]
        for thread in others:
            thread.start()
        wait_until(lambda: len(told) == 2)
        assert {(line["error"], line["executed"]) for line in told} == {("overloaded", "no")}
        assert stage.ask("status", conversation="c1")["busy"] == 5
        assert stage.say("meanwhile", "c2")[0]["text"] == "You said: meanwhile"
        assert stage.ask("cancel", conversation="c1") == 5
        *_, last = first
    for thread in others:
        thread.join()
    assert (last["error"], last["executed"]) == ("cancelled", "maybe")
    assert [(line["error"], line["executed"]) for line in told[2:]] == [("cancelled", "no")] * 4
    stage.wait_for_effect("killed sleep 60 # long")
    assert stage.say("again")[0]["text"] == "You said: again"


def test_who_stops_waiting_ends_the_turn(stage):
    with stage.asking("prompt", conversation="c1", text="long") as lines:
        next(lines)
        stage.wait_for_effect("start sleep 60 # long")
    stage.wait_for_effect("killed sleep 60 # long")


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        pytest.param({"conversation": "a:b", "text": "x"}, "malformed", id="colon"),
        pytest.param({"conversation": "../x", "text": "x"}, "malformed", id="path"),
        pytest.param({"conversation": "c", "text": ""}, "malformed", id="empty"),
        pytest.param({"conversation": "c", "text": "x" * 262145}, "malformed", id="long"),
        pytest.param({"conversation": "c", "text": "x", "agent": "other"}, "denied", id="agent"),
    ],
)
def test_what_is_refused(stage, ask, code):
    assert stage.ask("prompt", **ask)["error"] == code


def test_a_long_text_comes_through_whole(stage):
    text = "é" * 200_000
    assert stage.say(text)[0]["text"] == f"You said: {text}"


def test_kill_of_llm_in_a_prompt_is_told_and_the_conversation_goes_on(stage):
    with stage.asking("prompt", conversation="c1", text="long") as lines:
        next(lines)
        stage.wait_for_effect("start sleep 60 # long")
        stage.house.kill("llm")
        stage.start("llm")
        *_, last = lines
    assert (last["error"], last["executed"]) == ("peer_lost", "maybe")
    stage.wait_for_effect("killed sleep 60 # long")
    assert "it was interrupted" in last["message"]
    assert stage.say("and now")[0]["text"] == "You said: and now"


def test_kill_of_channels_ends_its_turns_and_its_plugins(stage):
    pid = stage.ask("about")["pid"]
    with stage.asking("prompt", conversation="c1", text="long") as lines:
        next(lines)
        stage.wait_for_effect("start sleep 60 # long")
        stage.house.kill("channels")
        gone(pid)
    stage.wait_for_effect("killed sleep 60 # long")
    stage.start("channels")
    assert stage.say("and now")[0]["text"] == "You said: and now"


def gone(pid):
    """Waits until process `pid` has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 60)[0], f"process {pid} lives"
    finally:
        os.close(handle)


def test_kill_of_the_broker_ends_what_runs_and_the_channel_goes_on(stage):
    with stage.asking("prompt", conversation="c1", text="long") as lines:
        next(lines)
        stage.wait_for_effect("start sleep 60 # long")
        stage.house.kill("broker")
        stage.start("broker")
        *_, last = lines
    assert (last["error"], last["executed"]) == ("peer_lost", "maybe")
    stage.wait_for_effect("killed sleep 60 # long")
    wait_until(lambda: stage.say("and now", "after-broker")[0].get("text") == "You said: and now")


def test_a_plugin_that_dies_loses_its_turns_and_is_started_again(stage):
    with stage.asking("prompt", conversation="c1", text="long") as lines:
        next(lines)
        stage.wait_for_effect("start sleep 60 # long")
        pid, other = stage.ask("about")["pid"], stage.ask("about", "two")["pid"]
        stage.ask_and_die()
        stage.wait_for_effect("killed sleep 60 # long")
    gone(pid)
    assert stage.ask("about")["pid"] != pid
    assert stage.ask("about", "two")["pid"] == other
    assert stage.say("and now")[0]["text"] == "You said: and now"


def test_a_channel_sees_its_own_secrets_alone(stage):
    about, two = stage.ask("about"), stage.ask("about", "two")
    assert about["config"] == {"token": "rig-secret"}
    assert about["agents"] == ["travel", "home"]
    assert two["config"] == {}
    assert "RIG_TOKEN" not in about["environ"] | two["environ"]
    assert b"rig-secret" not in Path(f"/proc/{about['pid']}/cmdline").read_bytes()


def test_a_second_channels_process_does_not_start(stage):
    with pytest.raises(RuntimeError, match="another channels process runs for this home"):
        stage.house.start("channels/0")
    assert stage.say("still there")[0]["text"] == "You said: still there"


def cli(stage, *arguments):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "beige.cli", "channels", *arguments],
        env=stage.house.environment("0"), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_the_command_line_lists_them(stage):
    with stage.asking("prompt", conversation="listed", text="long") as lines:
        next(lines)
        code, printed = cli(stage, "--json")
    assert code == 0
    rig, two = json.loads(printed)["channels"]
    assert (rig["name"], rig["adapter"], rig["agents"], rig["state"]) == (
        "rig",
        "rig",
        ["travel", "home"],
        "up",
    )
    assert (two["name"], two["adapter"], two["agents"], two["state"]) == ("two", "rig-two", ["home"], "up")
    assert (rig["prompts"], two["prompts"]) == (1, 0)
    assert "travel, home" in cli(stage)[1]


def test_an_orderly_end_leaves_no_process(stage):
    pid = stage.ask("about")["pid"]
    assert stage.house.stop("channels") == 0
    gone(pid)


def test_a_channel_that_always_fails_harms_no_other():
    channels = {
        "rig": {"agents": ["travel"], "config": {"refuse": True, "token": "x"}},
        "two": {"adapter": "rig-two", "agents": ["home"]},
    }
    with new_channel_stage(channels) as stage:
        stage.start()
        assert stage.say("hello", channel="two")[0]["text"] == "You said: hello"
        wait_until(
            lambda: stage.house.log("channels").count("plugin lost its process, starting it again") > 1
        )
        wait_until(lambda: cli(stage)[0] == 1)
        told = json.loads(cli(stage, "--json")[1])["channels"]
        assert (told[0]["problem"], told[1]["state"]) == ("its run() raised RuntimeError", "up")


def test_a_channel_that_can_not_be_loaded_is_listed_with_its_reason():
    channels = {"rig": {"agents": ["travel"]}, "bad": {"adapter": "bad", "agents": ["travel"]}}
    with new_channel_stage(channels, plugins={"bad": "plugins/bad"}) as stage:
        directory = stage.home.root / "plugins" / "bad"
        directory.mkdir()
        manifest = {"name": "bad", "description": "for tests", "provides": {"channels": ["bad"]}}
        (directory / "plugin.json").write_text(json.dumps(manifest))
        (directory / "plugin.py").write_text("raise ValueError('a secret')")
        stage.start("broker", "channels")
        code, printed = cli(stage)
        assert code == 1
        assert "importing it raised ValueError" in printed and "a secret" not in printed
