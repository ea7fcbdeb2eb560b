"""A channel in bad hands: its plugin, and whoever holds the channels process's bus key, do what the
configuration lists and no more. Each refusal has a control beside it: the same ask, allowed, works."""

import asyncio

import pytest

from beige.bus import Bus
from beige.errors import BeigeError, Denied, Failed
from beige.messages import METHODS
from beige.messages.base import AgentRef, Empty
from beige.messages.llm import HistoryRequest, PromptRequest, SessionsRequest
from beige.messages.sandbox import ExecRequest
from beige.messages.session_settings import SessionSettings, SettingsRequest
from beige.messages.tools import ToolCall
from broker.access import ROLES
from services.channels.lanes import HELD
from tests.processes.channel_stage import new_channel_stage, wait_until


@pytest.fixture(scope="module")
def stage():
    with new_channel_stage() as stage:
        stage.start("broker", "policy", "audit", "sandbox", "llm", "channels")
        stage.say("hello", "victim", channel="two")
        stage.prompt("travel", "hello", "operators")
        yield stage


# --- the plugin ---------------------------------------------------------------------------------------


def test_a_plugin_speaks_to_its_channels_agents_alone(stage):
    assert stage.say("x", agent="home")[0]["text"] == "You said: x"
    refused, events = stage.say("x", agent="other")
    assert (refused["error"], events) == ("denied", [])
    assert refused["message"] == "channel 'rig' may not speak to agent 'other'"
    assert not (stage.home.sessions / "other").exists()
    assert "it asked for agent 'other'" in stage.house.log("channels")


@pytest.mark.parametrize("ask", ["status", "settings", "new_session", "cancel"])
def test_nor_does_it_ask_anything_else_about_another_agent(stage, ask):
    assert "error" not in str(stage.ask(ask, conversation="c", agent="home"))
    assert stage.ask(ask, conversation="c", agent="other")["error"] == "denied"


@pytest.mark.parametrize(
    "conversation", ["two:victim", ":two:victim", "../two:victim", "victim/..", "victim\n"]
)
def test_a_plugin_names_no_session_outside_of_its_channel(stage, conversation):
    assert stage.ask("prompt", conversation=conversation, text="x")["error"] == "malformed"


def test_nor_when_it_speaks_past_its_own_side_of_the_api(stage):
    """The control: the same frame with a conversation's name makes a session."""
    own = stage.home.sessions / "travel" / "rig:beside.jsonl"
    stage.ask("raw", conversation="beside")
    wait_until(own.exists)
    before = stage.session("home", "two:victim")
    stage.ask_and_die("raw", conversation="x/../../home/two:victim")
    wait_until(lambda: "it broke the protocol" in stage.house.log("channels"))
    assert stage.say("alive", "after")[0]["text"] == "You said: alive"
    assert stage.session("home", "two:victim") == before


def test_a_plugin_that_asks_and_does_not_read_is_not_read_from_either(stage):
    """Else each of its answers would stay in the memory of the channels process."""
    stage.ask("deaf", count=150)
    assert stage.say("alive", channel="two")[0]["text"] == "You said: alive"
    begun = len(list((stage.home.sessions / "travel").glob("rig:deaf-*.jsonl")))
    assert 0 < begun <= HELD + 8
    stage.house.stop("channels")
    stage.start("channels")
    assert stage.say("alive", "after-deaf")[0]["text"] == "You said: alive"


def test_a_plugin_that_takes_what_was_not_sent_loses_its_process(stage):
    with stage.asking("prompt", conversation="taken", text="long") as lines:
        next(lines)
        pid = stage.ask("about")["pid"]
        stage.ask_and_die("take")
        wait_until(lambda: "it took more events than were sent" in stage.house.log("channels"))
    assert stage.ask("about")["pid"] != pid
    assert stage.say("alive", "after-taking")[0]["text"] == "You said: alive"


def test_two_channels_never_share_a_session(stage):
    before = stage.session("home", "two:victim")
    assert stage.say("mine now", "victim", agent="home")[0]["session"] == "rig:victim"
    assert stage.session("home", "two:victim") == before


# --- the bus key of the channels process ----------------------------------------------------------------


def as_channels(stage, method, body, **options):
    """The reply to a call made with the key of the channels process, which runs meanwhile."""

    async def work():
        async with Bus(stage.home, "channels/0") as bus:
            return await bus.call(method, body, **options)

    return asyncio.run(work())


OWN = {"agent": "travel", "session": "rig:mine", "channel": "rig"}


def test_the_key_does_what_the_configuration_lists(stage):
    """The control of all that follows."""
    assert as_channels(stage, "llm.prompt", PromptRequest("x"), **OWN).text == "You said: x"
    assert as_channels(stage, "llm.session", AgentRef(), **OWN).prompts == 1
    quiet = SettingsRequest(SessionSettings(verbose=False))
    assert as_channels(stage, "llm.settings", quiet, **OWN).settings["verbose"].layer == "session"


CALLS = {
    "llm.prompt": PromptRequest("x"),
    "llm.session": AgentRef(),
    "llm.settings": SettingsRequest(SessionSettings(verbose=True)),
}


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"agent": "other"}, "may not speak to agent 'other'", id="unlisted agent"),
        pytest.param(
            {"channel": "two", "session": "two:x"},
            "'two' may not speak to agent 'travel'",
            id="agent of none",
        ),
        pytest.param({"session": "two:victim"}, "begins with 'rig:'", id="other channel's session"),
        pytest.param({"session": "operators"}, "begins with 'rig:'", id="operator's session"),
        pytest.param({"session": ""}, "begins with 'rig:'", id="no session"),
        pytest.param({"channel": "", "session": ":x"}, "names itself", id="no channel"),
        pytest.param({"agent": ""}, "names itself, an agent", id="no agent"),
        pytest.param(
            {"channel": "cli", "session": "cli:x"}, "there is no channel 'cli'", id="as the terminal"
        ),
        pytest.param({"channel": "http", "session": "http:x"}, "there is no channel 'http'", id="as HTTP"),
        pytest.param({"channel": "rig:mine", "session": "rig:mine:x"}, "names itself", id="colon"),
    ],
)
def test_and_no_more(stage, method, change, reason):
    with pytest.raises(Denied, match=reason):
        as_channels(stage, method, CALLS[method], **OWN | change)


def test_policy_refuses_it_once_more_should_llm_not(stage):
    """As if llm had let the prompt in: what it causes is decided again, by the channel it came through."""

    def prompt(agent):
        async def work(cli):
            options = {"agent": agent, "session": f"rig:{agent}", "channel": "rig"}
            return (await cli.call("llm.prompt", PromptRequest("run it"), **options)).text

        return stage.run(work)

    assert prompt("travel") == "It printed hi", "control"
    refused = "Permission denied: channel 'rig' may not speak to agent 'other'"
    with pytest.raises(Failed, match=refused):
        prompt("other")
    denied = [line for line in stage.audit() if line["decision"] == "denied" and line["agent"] == "other"]
    assert {line["error"] for line in denied} == {refused}


@pytest.mark.parametrize("name", ["../travel/operators", "rig:../../travel/operators", "rig:x/y", "rig:\0"])
def test_no_session_leaves_the_directory(stage, name):
    with pytest.raises(BeigeError) as caught:
        as_channels(stage, "llm.prompt", PromptRequest("x"), **OWN | {"session": name})
    assert caught.value.code in ("denied", "malformed")


OPERATORS = {
    "sandbox.exec": ExecRequest(command="id"),
    "sandbox.remove": AgentRef(),
    "tools.call": ToolCall("kv"),
    "llm.history": HistoryRequest(),
    "llm.sessions": SessionsRequest(),
    "llm.remove": AgentRef(),
    "bus.cancel": Empty(),
    "bus.stats": Empty(),
    "channels.list": Empty(),
}


@pytest.mark.parametrize("method", OPERATORS)
def test_an_operators_methods_are_refused(stage, method):
    with pytest.raises(Denied, match="role 'channels' may not call"):
        as_channels(stage, method, OPERATORS[method], **OWN)


def test_of_all_methods_only_three_are_allowed():

    assert ROLES["channels"].calls == set(CALLS)
    assert set(METHODS) > set(CALLS)


def test_nobody_may_serve_with_the_key(stage):
    async def work():
        bus = Bus(stage.home, "channels/0")
        bus.serve("llm", {})
        with pytest.raises(BeigeError):
            await bus.start(2.0)
        await bus.close()

    asyncio.run(work())
    assert (
        stage.say("still answered by the real one")[0]["text"] == "You said: still answered by the real one"
    )
