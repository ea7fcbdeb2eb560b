"""Hooks of plugins, over a real bus: real llm and tools processes, policy, audit and SDKs, the simulator."""

import asyncio
import json

import httpx
import pytest

from beige.errors import BeigeError, Cancelled, Denied, Failed, PeerLost
from beige.messages.base import Empty
from beige.messages.chat import ChatCall, ChatMessage, ChatRequest
from beige.messages.llm import CompactRequest, PromptRequest
from beige.sessions import turn_options
from tests.processes.hook_stage import awake, digest, new_hook_stage, of_user, until
from tests.processes.llm_stage import prompt, texts
from tests.simulator.replies import Refusal, Think, Tool, reply


@pytest.fixture(scope="module")
def running():
    with new_hook_stage() as stage:
        stage.start()
        yield stage


@pytest.fixture
def stage(running):
    """Everything runs; what a test killed is started again."""
    running.simulator.reset()
    for name in ("tools", "llm"):
        if name not in running.house.processes:
            running.start(name)
    yield running
    assert running.simulator.problems == []


# --- prompts ----------------------------------------------------------------------------------------


def test_a_replaced_prompt_is_what_the_model_gets_and_both_are_written_down(stage):
    stage.simulator.answer(reply("one"), reply("two"))
    result, events = stage.prompt("asked", "swap Größe", "swapped")
    assert result.text == "one"
    assert of_user(stage.simulator.requests[0]) == ["Größe by ears"]
    assert "plugin 'ears' changed the prompt before a model saw it" in texts(events, "notice")
    (asked,) = [entry for entry in stage.session("asked", "swapped") if entry["type"] == "prompt"]
    assert (asked["text"], asked["hooks"]) == ("swap Größe", ["ears"])
    (entry,) = stage.hooks_of("asked", "swapped")
    assert (entry["state"], entry["text"], entry["plugin"]) == ("replaced", "Größe by ears", "ears")
    heard = stage.heard("asked")[-1]
    assert (heard["session"], heard["channel"], heard["model"]) == (
        "swapped", "test", "anthropic/claude-haiku-4-5",
    )  # fmt: skip
    stage.prompt("asked", "next", "swapped")
    assert of_user(stage.simulator.requests[1]) == ["Größe by ears", "next"], "it stays what it became"


def test_the_audit_log_says_who_changed_which_prompt_without_its_words(stage):
    stage.prompt("asked", "swap words", "logged")
    (opening,), (end,) = stage.records("logged", "started"), stage.records("logged")
    assert (opening["tool"], opening["args"], opening["src"]) == ("prePrompt", ["ears"], "llm/0")
    assert (opening["textDigest"], opening["inputBytes"]) == (digest("swap words"), 10)
    assert (end["kind"], end["textDigest"], end["outputBytes"]) == (
        "replaced", digest("words by ears"), len("words by ears"),
    )  # fmt: skip
    (asked,) = [entry for entry in stage.session("asked", "logged") if entry["type"] == "prompt"]
    assert end["parent"] == asked["call"], "the record leads to the prompt"
    assert "words" not in json.dumps([opening, end])


def test_a_refused_prompt_reaches_no_model_now_or_later(stage):
    with pytest.raises(Denied, match="plugin 'ears' refused the prompt: ears says no"):
        stage.prompt("asked", "refuse 4111-1111", "refused")
    assert stage.simulator.requests == []
    entries = stage.session("asked", "refused")
    assert [entry["type"] for entry in entries] == ["session", "prompt", "hook", "turn_end"]
    assert entries[-1]["outcome"] == "refused"
    (end,) = stage.records("refused")
    assert (end["kind"], end["error"], end["decision"]) == ("refused", "refused: ears says no", "allowed")
    stage.simulator.answer(reply("fine"))
    assert stage.prompt("asked", "hello", "refused")[0].text == "fine"
    assert of_user(stage.simulator.requests[0]) == ["hello"]
    assert "4111" not in stage.said_to_models()


def test_hooks_are_asked_in_the_order_that_is_written_and_each_gets_what_the_last_one_left(stage):
    stage.simulator.answer(reply("ok"))
    stage.prompt("chain", "swap swap x", "chain")
    assert [entry["plugin"] for entry in stage.hooks_of("chain", "chain")] == ["tail", "ears"]
    assert of_user(stage.simulator.requests[0]) == ["x by tail by ears"]
    with pytest.raises(Denied, match="tail says no"):
        stage.prompt("chain", "refuse it", "chain-refused")
    assert [line["session"] for line in stage.heard("chain", "ears")] == ["chain"], "the first no is the last"


def test_nobody_is_asked_for_an_agent_without_hooks(stage):
    stage.simulator.answer(reply("a secret"))
    result, events = stage.prompt("plain", "swap x", "plain")
    assert (result.text, texts(events)) == ("a secret", "a secret")
    assert of_user(stage.simulator.requests[0]) == ["swap x"]
    assert stage.records("plain", "started") == [] == stage.heard("plain")
    assert "hooks" not in next(e for e in stage.session("plain", "plain") if e["type"] == "prompt")


# --- failures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strict", "lax", "text", "why"),
    [
        ("asked", "lax", "raise x", "plugin 'ears' failed (ValueError); the gateway's log has the details"),
        ("asked", "lax", "exit x", "the plugin's process ended during the call"),
        ("hurried", "hurried-lax", "hang x", "plugin 'ears' did not answer prePrompt within 0.5 s"),
    ],
    ids=["raises", "dies", "hangs"],
)
def test_a_hook_that_fails_stops_the_prompt_unless_it_is_written_otherwise(stage, strict, lax, text, why):
    name = text.partition(" ")[0]
    awake(stage)
    with pytest.raises(Failed) as caught:
        stage.prompt(strict, text, name)
    assert str(caught.value) == (
        f"plugin 'ears' could not check the prompt: {why}; no model was shown the prompt (onFailure)"
    )
    assert text not in stage.said_to_models()
    awake(stage)
    _, events = stage.prompt(lax, text, name)
    assert texts(events, "notice").endswith(f"the prompt goes on without plugin 'ears': {why}")
    assert of_user(stage.simulator.requests[-1]) == [text]
    assert [entry["state"] for entry in stage.hooks_of(lax, name)] == ["skipped"]
    assert [why[:100] in record["error"] for record in stage.records(name)] == [True, True]
    awake(stage)


def test_a_tools_process_that_is_killed_during_a_hook_opens_no_door(stage):
    async def steps(cli):
        asked = asyncio.create_task(prompt(cli, "asked", "wait x", "killed"))
        while not any(line["session"] == "killed" for line in stage.heard("asked")):
            await asyncio.sleep(0.02)
        await asyncio.to_thread(stage.house.kill, "tools")
        with pytest.raises(Failed, match="could not check the prompt: tools/0 died while serving the call"):
            await asked

    stage.run(steps)
    assert stage.simulator.requests == []
    assert [line["session"] for line in stage.heard("asked")].count("killed") == 1, "it ran once"


def test_a_prompt_whose_llm_process_dies_during_its_hook_is_interrupted_and_shown_to_no_model(stage):
    stage.start("llm/1")  # who takes over

    async def steps(cli):
        body = PromptRequest("wait for it")
        async with cli.open("llm.prompt", body, **turn_options("asked", "dies", "test")) as stream:
            while not any(line["session"] == "dies" for line in stage.heard("asked")):
                await asyncio.sleep(0.02)
            (opening,) = stage.records("dies", "started")
            await asyncio.to_thread(stage.house.kill, opening["src"].removesuffix("/0"))
            with pytest.raises(PeerLost, match="interrupted"):
                await stream.result()

    stage.run(steps)
    stage.file("go").touch()
    assert [line["session"] for line in stage.heard("asked")].count("dies") == 1, "it ran once"
    stage.simulator.answer(reply("ok"))
    stage.prompt("asked", "hello", "dies")
    assert of_user(stage.simulator.requests[0]) == ["hello"]
    stage.file("go").unlink()
    if "llm/1" in stage.house.processes:
        stage.house.stop("llm/1")


def test_a_prompt_that_is_cancelled_during_its_hook_is_shown_to_no_model_and_the_plugin_goes_on(stage):
    async def steps(cli):
        asked = asyncio.create_task(prompt(cli, "asked", "wait for ever", "cancelled"))
        while not any(line["session"] == "cancelled" for line in stage.heard("asked")):
            await asyncio.sleep(0.02)
        await cli.call("bus.cancel", Empty(), agent="asked", session="cancelled")
        with pytest.raises(Cancelled):
            await asked

    stage.run(steps)
    stage.file("go").touch()
    ends = until(lambda: [e for e in stage.session("asked", "cancelled") if e["type"] == "turn_end"])
    assert [end["outcome"] for end in ends] == ["cancelled"]
    stage.simulator.answer(reply("ok"))
    assert stage.prompt("asked", "hello", "cancelled")[0].text == "ok"
    assert of_user(stage.simulator.requests[0]) == ["hello"]
    stage.file("go").unlink()


def test_a_hook_knows_who_wrote_in_a_chat(stage):
    async def steps(cli):
        body = PromptRequest("hello", sender="ada")
        return await cli.call("llm.prompt", body, agent="asked", session="sent", ttl_s=60)

    stage.run(steps)
    assert [line["sender"] for line in stage.heard("asked") if line["session"] == "sent"] == ["ada"]


# --- answers ----------------------------------------------------------------------------------------


def test_a_replaced_answer_is_all_that_is_shown_also_when_it_is_streamed(stage):
    stage.simulator.answer(reply(Think("the secret is"), "the se", "cret is out"), reply("ok"))
    result, events = stage.prompt("both", "tell", "masked")
    assert (result.text, texts(events)) == ("the [hidden] is out", "the [hidden] is out")
    assert "secret" not in json.dumps([event.text for event in events])
    assert texts(events, "thinking_delta") == ""
    assert "plugin 'ears' changed the answer before it was shown" in texts(events, "notice")
    (answer,) = [entry for entry in stage.session("both", "masked") if entry["type"] == "assistant"]
    assert "the secret is out" in "".join(block.get("text", "") for block in answer["content"][1:])
    assert [entry["state"] for entry in stage.hooks_of("both", "masked")] == ["unchanged", "replaced"]
    stage.prompt("both", "again", "masked")
    own = stage.simulator.requests[1].body["messages"][1]
    assert "".join(block.get("text", "") for block in own["content"]) == "the secret is out"


def test_a_refused_answer_is_not_shown_and_its_tools_are_not_run(stage):
    stage.simulator.answer(reply("poison", Tool("write", {"path": "a", "content": "x"})), reply("ok"))
    seen = []

    async def steps(cli):
        with pytest.raises(Denied, match="plugin 'ears' refused the answer: poison in it") as caught:
            await prompt(cli, "both", "tell", "poisoned", seen.append)
        assert caught.value.executed == "maybe"

    stage.run(steps)
    assert not any(effect.startswith("write") for effect in stage.effects())
    assert texts(seen) == ""
    assert {event.kind for event in seen}.isdisjoint({"tool_start", "text_delta"})
    entries = stage.session("both", "poisoned")
    assert (entries[-1]["type"], entries[-1]["outcome"]) == ("turn_end", "refused")
    assert stage.prompt("both", "hello", "poisoned")[0].text == "ok", "the session goes on"


def test_every_answer_of_a_turn_is_looked_at_not_only_the_last(stage):
    stage.simulator.answer(reply("the secret: ", Tool("write", {"path": "b", "content": "x"})), reply("done"))
    result, events = stage.prompt("both", "do", "each")
    assert (result.text, texts(events)) == ("done", "the [hidden]: done")
    assert [line["text"] for line in stage.heard("both", hook="postResponse")][-2:] == [
        "the secret: ",
        "done",
    ]


def test_who_only_observes_holds_nothing_back_and_changes_nothing(stage):
    stage.simulator.answer(reply("a ", "poison ", "in pieces"))
    result, events = stage.prompt("watched", "refuse me", "watched")
    assert (result.text, texts(events)) == ("a poison in pieces",) * 2
    until(lambda: len(stage.heard("watched")) == 2)
    assert {line["text"] for line in stage.heard("watched")} == {"refuse me", "a poison in pieces"}
    assert {record["kind"] for record in stage.records("watched")} == {"told"}
    assert stage.hooks_of("watched", "watched") == []


@pytest.mark.parametrize("victim", ["tools", "llm"])
def test_an_answer_whose_check_is_interrupted_by_kill_9_is_shown_to_nobody(stage, victim):
    """Whoever dies: no hook runs again, the file has the answer if anybody has, and the session goes on."""
    name, seen = f"lingers-{victim}", []
    awake(stage)
    stage.start("llm/1")  # who takes over
    stage.simulator.answer(reply("I linger"), reply("ok"))

    async def steps(cli):
        body = PromptRequest("tell")
        async with cli.open("llm.prompt", body, **turn_options("both", name, "test")) as stream:

            async def follow():
                async for event in stream:
                    seen.append(event)

            following = asyncio.create_task(follow())
            while not any(line["text"] == "I linger" for line in heard_of(name)):
                await asyncio.sleep(0.02)
            serving = stage.records(name, "started")[-1]["src"].removesuffix("/0")
            await asyncio.to_thread(stage.house.kill, serving if victim == "llm" else victim)
            with pytest.raises(BeigeError) as caught:
                await stream.result()
            await asyncio.gather(following, return_exceptions=True)
            return caught.value

    def heard_of(session):
        return [line for line in stage.heard("both", hook="postResponse") if line["session"] == session]

    error = stage.run(steps)
    assert isinstance(error, Failed if victim == "tools" else PeerLost), error
    assert texts(seen) == ""
    assert len(heard_of(name)) == 1, "it ran once"
    stage.file("go").touch()
    if victim == "tools":
        stage.start("tools")
    assert stage.prompt("both", "hello", name)[0].text == "ok"
    stage.file("go").unlink()
    if "llm/1" in stage.house.processes:
        stage.house.stop("llm/1")


def test_the_bundled_guard_keeps_credentials_from_models_and_users(stage):
    token = "ghp_" + "a1B2" * 9
    with pytest.raises(
        Denied, match="plugin 'guard' refused the prompt: it holds what looks like a GitHub token"
    ):
        stage.prompt("guarded", f"use {token}", "guarded")
    stage.simulator.answer(reply("a ", "zebra"), reply(f"I use {token}"))
    with pytest.raises(Denied, match="refused the answer: it holds what looks like a listed word"):
        stage.prompt("guarded", "hello", "guarded")
    result, events = stage.prompt("masked", f"use {token}", "masked")
    assert (result.text, texts(events)) == ("I use [masked: a GitHub token]",) * 2
    assert of_user(stage.simulator.requests[1]) == ["use [masked: a GitHub token]"]
    assert token not in stage.said_to_models() + stage.home.audit_log.read_text()


# --- models -----------------------------------------------------------------------------------------


def test_a_session_that_ends_up_on_another_model_is_told_of_once(stage):
    overloaded = Refusal(529, "overloaded_error", "Overloaded")
    stage.simulator.answer(overloaded, reply("one"), overloaded, reply("two"), reply("three"))
    for text in ("one", "two", "three"):
        assert stage.prompt("pair", text, "pair")[0].text == text
    (told,) = until(lambda: stage.heard("pair"))
    assert (told["hook"], told["session"], told["text"]) == ("modelSwitched", "pair", "")
    assert (told["previous_model"], told["model"]) == ("anthropic/claude-haiku-4-5", "zai/glm-5")
    assert "overloaded (529)" in told["reason"]
    assert [record["kind"] for record in stage.records("pair")] == ["told"]


def test_a_notification_that_nobody_takes_ends_no_turn(stage):
    stage.house.kill("tools")
    stage.simulator.answer(Refusal(529, "overloaded_error", "Overloaded"), reply("one"))
    assert stage.prompt("pair", "x", "untold")[0].text == "one"


# --- clients that run their own loop, and the other doors -------------------------------------------


def chat(stage, agent, *messages):
    asked = [ChatMessage("user", m) if isinstance(m, str) else m for m in messages]

    async def steps(cli):
        events = []
        async with cli.open("llm.chat", ChatRequest(asked), agent=agent, ttl_s=60) as stream:
            async for event in stream:
                events.append(event)
            return await stream.result(), events

    return stage.run(steps)


def test_a_clients_own_conversation_passes_the_hooks_all_of_it_and_each_message_once(stage):
    stage.simulator.answer(reply("a secret"), reply("ok"))
    answer, events = chat(stage, "both", "swap first")
    assert (answer.text, texts(events)) == ("a [hidden]",) * 2
    said = ChatMessage("assistant", answer.text, [ChatCall("c1", "look")])
    chat(stage, "both", "swap first", said, ChatMessage("tool", "seen", tool_id="c1"))
    assert of_user(stage.simulator.requests[1])[0] == "first by ears", "the client still has the old text"
    assert [line["text"] for line in stage.heard("both", hook="prePrompt")].count("swap first") == 1
    assert [line["text"] for line in stage.heard("asked", hook="prePrompt")].count("swap first") == 0
    chat(stage, "asked", "swap first")
    assert [line["text"] for line in stage.heard("asked", hook="prePrompt")].count("swap first") == 1


def test_a_message_that_could_not_be_checked_is_checked_again(stage):
    awake(stage)
    for _ in range(2):
        _, events = chat(stage, "lax", "raise x")
        assert "goes on without plugin 'ears'" in texts(events, "notice")
    assert [line["text"] for line in stage.heard("lax")].count("raise x") >= 2


def test_a_refused_message_stays_refused_behind_newer_ones(stage):
    for messages in (["refuse this"], ["refuse this", "and now?"]):
        with pytest.raises(Denied, match="refused the prompt"):
            chat(stage, "both", *messages)
    with pytest.raises(Failed, match="could not check the prompt"):
        chat(stage, "asked", "raise x")
    stage.simulator.answer(reply("poison"))
    with pytest.raises(Denied, match="refused the answer"):
        chat(stage, "both", "hello")
    assert len(stage.simulator.requests) == 1


def test_the_http_doors_have_the_same_hooks(stage):
    url, token = stage.home.http_address.read_text().strip(), stage.home.http_token.read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        hello = [{"role": "user", "content": "swap hello"}]
        stage.simulator.answer(reply("a secret"), reply("a secret"), reply("a secret"))
        lines = client.post("/api/chat/stream", json={"agent": "both", "messages": hello}).text.splitlines()
        assert json.loads(lines[-1])["text"] == "a [hidden]"
        done = client.post("/v1/chat/completions", json={"model": "both", "messages": hello}).json()
        assert done["choices"][0]["message"]["content"] == "a [hidden]"
        streamed = client.post(
            "/v1/chat/completions", json={"model": "both", "messages": hello, "stream": True}
        ).text
        assert "a [hidden]" in streamed and "secret" not in streamed
        assert {text for request in stage.simulator.requests for text in of_user(request)} == {
            "hello by ears"
        }
        refused = client.post(
            "/v1/chat/completions",
            json={"model": "both", "messages": [{"role": "user", "content": "refuse it"}]},
        )
        assert refused.status_code == 403
        assert refused.json()["error"]["message"] == "plugin 'ears' refused the prompt: ears says no"
        blocked = client.post(
            "/api/chat/stream",
            json={"agent": "both", "messages": [{"role": "user", "content": "refuse it"}]},
        ).text
        assert json.loads(blocked)["kind"] == "blocked"


def test_the_wishes_for_a_summary_are_a_prompt_and_what_is_shown_of_it_an_answer(stage):
    stage.simulator.answer(reply("one"), reply("the secret summary"))
    stage.prompt("both", "hello", "compacted")

    async def compact(cli, wishes):
        return await cli.call(
            "llm.compact", CompactRequest(wishes), agent="both", session="compacted", ttl_s=60
        )

    with pytest.raises(Denied, match="refused the prompt"):
        stage.run(lambda cli: compact(cli, "refuse it"))
    assert stage.run(lambda cli: compact(cli, "swap keep")).summary == "the [hidden] summary"
    assert "keep by ears" in stage.said_to_models()
