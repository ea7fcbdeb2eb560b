"""The llm process over a real broker, with policy and audit; the real SDKs against the simulator."""

import asyncio
import base64
import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest

from beige.bus import Bus
from beige.errors import Cancelled, DeadlineExceeded, Failed, Malformed, NotFound, PeerLost, Unavailable
from beige.messages.base import Empty
from beige.messages.llm import PromptRequest
from beige.testing import House, short_home
from tests.processes.llm_stage import KEYS, Stage, prompt, texts
from tests.simulator.replies import Fault, Refusal, Silence, Think, Tool, reply
from tests.simulator.server import Simulator

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)

SCRIPT = """[
  { say: "I write a script.", tool: "write",
    args: { path: "hello.sh", content: "echo hello; echo oops >&2; exit 3" } },
  { tool: "exec", args: { command: "bash hello.sh" } },
  { expect: "exit code 3", else: "wrong: {{last.text}}" },
  { say: "It said {{last.stdout}} and {{last.stderr}}." },
  { say: "Second: {{prompt}}" },
]"""


def config(url):
    agents = {
        name: {"model": model, "tools": [], "sandbox": {"image": "x"}, "maxTurns": 5}
        for name, model in {
            "demo": {"provider": "demo", "model": "walk"},
            "claude": {"provider": "anthropic", "model": "claude-haiku-4-5"},
            "glm": {"provider": "zai", "model": "glm-5"},
            "gpt": {"provider": "openai", "model": "gpt-5", "thinkingLevel": "low"},
        }.items()
    }
    providers = {
        "demo": {"api": "scripted", "script": "script.json5"},
        "anthropic": {"apiKey": "${ANTHROPIC_API_KEY}", "baseUrl": url, "timeoutS": 30},
        "openai": {"api": "openai-responses", "apiKey": "${ZAI_API_KEY}", "baseUrl": f"{url}/v1"},
        "zai": {"api": "openai-completions", "apiKey": "${ZAI_API_KEY}", "baseUrl": f"{url}/v1"},
    }
    return {"llm": {"providers": providers}, "agents": agents}


@contextlib.contextmanager
def new_stage():
    with Simulator() as simulator, short_home() as home:
        home.config.write_text(json.dumps(config(simulator.url)))
        (home.root / "script.json5").write_text(SCRIPT)
        with House(home) as house:
            yield Stage(house, simulator)


@pytest.fixture
def bare():
    """Nothing runs yet; for tests that end processes or start only some."""
    with new_stage() as stage:
        yield stage


@pytest.fixture(scope="module")
def running():
    with new_stage() as stage:
        stage.start()
        yield stage


@pytest.fixture
def stage(running):
    """Everything runs; no session, no file, no recorded request."""
    running.simulator.reset()
    for directory in (running.home.sessions, running.work):
        shutil.rmtree(directory)
        directory.mkdir(mode=0o700)
    return running


def assert_sound(stage):
    """What must hold after every test: requests the APIs accept, and no key anywhere."""
    assert stage.simulator.problems == []
    written = [path for path in stage.home.root.rglob("*") if path.is_file() and "keys" not in path.parts]
    for path in written:
        content = path.read_bytes()
        assert not any(key.encode() in content for key in KEYS.values()), f"a key is in {path}"


def test_a_scripted_turn_runs_through_the_corridor_and_says_what_it_is(bare):
    bare.start()
    result, events = bare.prompt("demo", "go")
    assert result.text == "It said hello and oops."
    assert (result.model, result.scripted, result.stop_reason, result.tool_calls) == (
        "scripted/walk", True, "end_turn", 2,
    )  # fmt: skip
    kinds = [event.kind for event in events]
    assert (kinds[0], events[0].session) == ("accepted", "s1")
    assert (kinds[1], events[1].text) == (
        "notice",
        "scripted model: a script file speaks here, not a language model",
    )
    assert texts(events) == "I write a script.It said hello and oops."
    assert {(event.stream, event.text) for event in events if event.kind == "tool_output"} == {
        ("stdout", "hello\n"),
        ("stderr", "oops\n"),
    }
    ended = [event for event in events if event.kind == "tool_end"]
    assert [(event.tool, event.exit_code, event.is_error) for event in ended] == [
        ("write", None, False),
        ("exec", 3, False),
    ]
    assert kinds.index("tool_start") < kinds.index("tool_output") < len(kinds)
    lines = bare.session("demo", "s1")
    assert [line["type"] for line in lines] == [
        "session", "prompt", "context", "assistant", "tool_start", "tool_result", "assistant", "tool_start",
        "tool_result", "assistant", "turn_end",
    ]  # fmt: skip
    assert all(line["scripted"] for line in lines if line["type"] == "assistant")
    assert oct((bare.home.sessions / "demo" / "s1.jsonl").stat().st_mode)[-3:] == "600"
    calls = [line for line in bare.audit() if line["phase"] == "started"]
    assert [(line["agent"], line["tool"], line["session"]) for line in calls] == [
        ("demo", "read", "s1"),
        ("demo", "model", "s1"),
        ("demo", "write", "s1"),
        ("demo", "model", "s1"),
        ("demo", "exec", "s1"),
        ("demo", "model", "s1"),
    ]


def test_a_session_goes_on_where_it_stood_also_in_a_new_process(bare):
    bare.start()
    bare.prompt("demo", "go")
    bare.house.stop("llm")
    bare.start("llm")
    result, _ = bare.prompt("demo", "more")
    assert result.text == "Second: more"
    assert [effect for effect in bare.effects() if effect.startswith("read")] == ["read /workspace/AGENTS.md"]


def test_a_house_without_a_sandbox_waits_for_none(bare):
    """A call that lives for three seconds would die of old age if it waited five for somebody to come."""
    bare.start("broker", "policy", "audit", "llm")

    async def until_it_is_known(bus):
        async with asyncio.timeout(120):
            while True:
                with contextlib.suppress(DeadlineExceeded):
                    await bus.call("sandbox.list", Empty(), ttl_s=3.0)
                    pytest.fail("somebody serves it")

    async def test():
        async with Bus(bare.home, "cli/0") as bus:
            with pytest.raises(Unavailable, match="no sandbox process is running"):
                await until_it_is_known(bus)

    asyncio.run(test())
    result, events = bare.prompt("demo", "go")
    assert result.stop_reason == "end_turn"
    notices = [event.text for event in events if event.kind == "notice"]
    assert "AGENTS.md could not be read: no sandbox process is running" in notices


def test_a_scripted_configuration_imports_no_sdk(bare):
    only = config(bare.simulator.url)
    only["llm"]["providers"] = {"demo": only["llm"]["providers"]["demo"]}
    only["agents"] = {"demo": only["agents"]["demo"]}
    bare.home.config.write_text(json.dumps(only))
    bare.start("broker", "llm")
    maps = Path(f"/proc/{bare.house.processes['llm'].pid}/maps").read_text()
    assert "jiter" not in maps and "pydantic_core" in maps, "jiter is the SDKs' native JSON parser"


AGENTS = ["claude", "glm", "gpt"]
START = ("session", "context")


@pytest.mark.parametrize("agent", AGENTS)
def test_a_model_works_with_all_four_tools(stage, agent):
    workspace = stage.work / agent
    workspace.mkdir()
    (workspace / "AGENTS.md").write_text("Build with make.")
    (workspace / "dot.png").write_bytes(PNG)
    big = "é" * 600_000
    calls = [
        Tool("write", {"path": "a b'.txt", "content": "one\n"}, id="c1"),
        Tool("patch", {"path": "a b'.txt", "old": "one", "new": "zwei"}, id="c2"),
        Tool("exec", {"command": 'cat "a b\'.txt"'}, id="c3", pieces=12),
    ]
    image, large = (
        Tool("read", {"path": "dot.png"}, id="c4"),
        Tool("write", {"path": "big", "content": big}, id="c5"),
    )
    stage.simulator.answer(reply("I start.", *calls), reply(image, large), reply("All ", "done."))
    result, events = stage.prompt(agent, "do it")
    assert result.text == "All done." and result.tool_calls == 5 and not result.scripted
    assert result.usage == {"input_tokens": 75, "output_tokens": 45}
    assert texts(events, "tool_output") == "zwei\n"
    assert (workspace / "big").read_text() == big
    requests = [json.dumps(request.body) for request in stage.simulator.requests]
    assert "Build with make." in requests[0] and "You are" in requests[0]
    assert base64.b64encode(PNG).decode() in requests[2]
    assert_sound(stage)


@pytest.mark.parametrize("agent", AGENTS)
def test_wrong_calls_and_failing_tools_are_told_to_the_model(stage, agent):
    stage.simulator.answer(
        reply(Tool("exec", {"comand": "ls"}, id="c1"), Tool("bash", {"command": "ls"}, id="c2"),
              Tool("exec", raw='{"command": "l', id="c3"), Tool("read", {"path": "none"}, id="c4")),
        reply("I see."),
    )  # fmt: skip
    result, events = stage.prompt(agent, "do it")
    assert result.text == "I see."
    ended = [event for event in events if event.kind == "tool_end"]
    assert all(event.is_error for event in ended)
    told = json.dumps(stage.simulator.requests[1].body)
    for words in ("comand", "no tool 'bash'", "not a JSON object", "none: no such file"):
        assert words in told
    assert_sound(stage)


def test_thinking_is_streamed_and_kept(stage):
    stage.simulator.answer(reply(Think("let me see"), "Done."))
    result, events = stage.prompt("claude", "think")
    assert texts(events, "thinking_delta") == "let me see" and result.text == "Done."
    assert stage.session("claude", "s1")[3]["content"][0]["signature"]


def test_without_policy_no_model_is_called_and_the_turn_says_why(bare):
    bare.start("broker", "audit", "sandbox", "llm")
    with pytest.raises(Failed, match="policy did not let us call it: no policy process is running"):
        bare.prompt("claude", "do it")
    assert bare.simulator.requests == [] and bare.effects() == []
    bare.start("policy")
    bare.simulator.answer(reply("Here."))
    assert bare.prompt("claude", "again")[0].text == "Here."


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Refusal(401, "authentication_error", f"bad {KEYS['ANTHROPIC_API_KEY']}"), "refused the key"),
        (Refusal(402, "billing_error", "no credit left"), "no credit (402)"),
        (Refusal(400, "invalid_request_error", "tools.0: no"), "refused the request (400)"),
        (Refusal(413, "request_too_large", "too large"), "too long for the model (413)"),
    ],
    ids=["401", "402", "400", "413"],
)
def test_a_failure_that_no_retry_cures_ends_the_turn_with_its_reason_and_the_session_goes_on(
    stage, answer, said
):
    stage.simulator.answer(answer, reply("Here."))
    with pytest.raises(Failed) as raised:
        stage.prompt("claude", "one")
    assert str(raised.value).startswith("anthropic/claude-haiku-4-5: ") and said in str(raised.value)
    assert stage.session("claude", "s1")[-1]["outcome"] == "failed"
    assert said in stage.house.log("llm") and stage.simulator.url not in stage.house.log("llm")
    assert stage.prompt("claude", "two")[0].text == "Here."
    assert_sound(stage)


def test_the_turn_stops_at_max_turns(stage):
    stage.simulator.answer(*[reply(Tool("exec", {"command": "true"}, id=f"c{n}")) for n in range(9)])
    result, events = stage.prompt("claude", "loop")
    assert (result.stop_reason, result.tool_calls) == ("max_turns", 5)
    assert "maxTurns" in texts(events, "notice")
    assert len(stage.simulator.requests) == 5


async def cancel_when(cli, agent, condition, session="s1"):
    """Cancel a prompt at the first event for which `condition` holds, and wait for its end."""
    body = PromptRequest(text="do it")
    async with cli.open("llm.prompt", body, agent=agent, session=session, ttl_s=60) as stream:
        async for event in stream:
            if condition(event):
                return
    raise AssertionError("the event never came")


def test_a_cancelled_prompt_kills_the_command_and_the_session_goes_on(stage):
    stage.simulator.answer(
        reply(
            "Working.",
            Tool("exec", {"command": "echo on; sleep 60"}, id="c1"),
            Tool("read", {"path": "x"}, id="c2"),
        ),
        reply("Back."),
    )

    async def steps(cli):
        await cancel_when(cli, "claude", lambda event: event.kind == "tool_output")
        return await prompt(cli, "claude", "and now?")  # waits for the session, so for the clean-up

    result, _ = stage.run(steps)
    assert result.text == "Back."
    assert "killed echo on; sleep 60" in stage.effects()
    results = [line for line in stage.session("claude", "s1") if line["type"] == "tool_result"]
    assert [
        "may not have been" in results[0]["content"][0]["text"],
        "not executed" in results[1]["content"][0]["text"],
    ]
    assert [line["outcome"] for line in stage.session("claude", "s1") if line["type"] == "turn_end"] == [
        "cancelled",
        "answered",
    ]
    assert_sound(stage)


def test_a_prompt_cancelled_in_the_middle_of_an_answer_keeps_what_was_said(stage):
    stage.simulator.answer(reply("first words", fault=Fault("hang", 4)), reply("Back."))

    async def steps(cli):
        await cancel_when(cli, "glm", lambda event: event.kind == "text_delta")
        return await prompt(cli, "glm", "and now?")

    result, _ = stage.run(steps)
    assert result.text == "Back."
    stage.simulator.wait_for(lambda: stage.simulator.disconnected == 1)
    said = next(line for line in stage.session("glm", "s1") if line["type"] == "assistant")
    assert said["stop_reason"] == "cancelled" and "first words".startswith(said["content"][0]["text"])
    assert_sound(stage)


def test_a_killed_worker_loses_no_prompt_and_repeats_no_command(bare):
    bare.start()
    bare.simulator.answer(
        reply(
            Tool("exec", {"command": "echo one"}, id="c1"),
            Tool("exec", {"command": "echo on; sleep 60"}, id="c2"),
        ),
        reply("I looked."),
    )

    def kill(event):
        if event.kind == "tool_output" and event.text == "on\n":
            bare.house.kill("llm")

    with pytest.raises(PeerLost):
        bare.run(lambda cli: prompt(cli, "claude", "do it", seen=kill))
    bare.start("llm")
    result, events = bare.prompt("claude", "what happened?")
    assert result.text == "I looked."
    assert "interrupted" in texts(events, "notice")
    assert [effect for effect in bare.effects() if effect.startswith("start")] == [
        "start echo one",
        "start echo on; sleep 60",
    ]
    told = json.dumps(bare.simulator.requests[-1].body)
    assert "stdout:\\\\none" in told or "stdout:\\none" in told, "a finished result is kept"
    assert "may or may not have been executed" in told
    assert_sound(bare)


def test_prompts_to_one_session_wait_for_each_other_and_others_do_not(stage):
    (stage.work / "glm").mkdir()
    gate = stage.work / "glm" / "gate"
    os.mkfifo(gate)
    stage.simulator.answer(reply(Tool("exec", {"command": "echo waiting; read line < gate"})))

    async def steps(cli):
        started, queued = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(
            prompt(cli, "glm", "first", seen=lambda event: event.kind == "tool_output" and started.set())
        )
        await started.wait()
        stage.simulator.answer(reply("other"), reply("first done"), reply("second done"))
        second = asyncio.create_task(
            prompt(cli, "glm", "second", seen=lambda event: "is busy" in event.text and queued.set())
        )
        await queued.wait()
        other, _ = await prompt(cli, "glm", "other", session="s2")
        assert other.text == "other" and not first.done() and not second.done()
        await asyncio.to_thread(gate.write_text, "go\n")
        return [(await task)[0].text for task in (first, second)]

    assert stage.run(steps) == ["first done", "second done"]
    prompts = [line["text"] for line in stage.session("glm", "s1") if line["type"] == "prompt"]
    assert prompts == ["first", "second"]
    assert_sound(stage)


def test_two_workers_never_serve_one_session_at_once(bare):
    bare.start()
    bare.start("llm/1")

    async def steps(cli):
        results = await asyncio.gather(*[prompt(cli, "claude", f"p{n}") for n in range(12)])
        return [result.text for result, _ in results]

    bare.simulator.answer(*[reply(f"answer {n}") for n in range(12)])
    assert sorted(bare.run(steps)) == sorted(f"answer {n}" for n in range(12))
    types = [
        line["type"] for line in bare.session("claude", "s1") if line["type"] not in ("session", "context")
    ]
    assert types == ["prompt", "assistant", "turn_end"] * 12
    assert_sound(bare)


def test_a_prompt_without_listener_and_without_session_is_answered_too(stage):
    stage.simulator.answer(reply(Tool("exec", {"command": "echo hi"})), reply("Done."))
    result = stage.run(lambda cli: cli.call("llm.prompt", PromptRequest(text="x"), agent="claude"))
    assert result.text == "Done."
    assert len(stage.session("claude", result.session)) == 8


@pytest.mark.parametrize(
    ("agent", "session", "error"),
    [("nobody", "s1", NotFound), ("demo", "../claude/s1", Malformed), ("demo", "a/b", Malformed)],
)
def test_an_unknown_agent_and_a_path_for_a_session_are_refused(bare, agent, session, error):
    bare.start("broker", "llm")
    with pytest.raises(error):
        bare.prompt(agent, "x", session)
    assert list(bare.home.sessions.rglob("*.jsonl")) == []


def test_stopping_the_worker_ends_a_turn_cleanly(bare):
    bare.start()
    bare.simulator.answer(Silence())
    ended = []

    async def steps(cli):
        task = asyncio.create_task(prompt(cli, "claude", "x"))
        await asyncio.to_thread(bare.simulator.wait_for, lambda: len(bare.simulator.requests) == 1)
        ended.append(await asyncio.to_thread(bare.house.stop, "llm"))
        with pytest.raises((Cancelled, PeerLost)):
            await task

    bare.run(steps)
    assert ended == [0]
    assert bare.session("claude", "s1")[-1]["outcome"] == "cancelled"


@pytest.mark.parametrize(
    ("script", "keys", "said"),
    [
        ('[{ sey: "x" }]', KEYS, "script.json5: Object contains unknown field `sey`"),
        (SCRIPT, {"ANTHROPIC_API_KEY": "x"}, "ZAI_API_KEY"),
    ],
    ids=["wrong script", "missing key"],
)
def test_a_wrong_configuration_stops_the_start_with_its_place(bare, script, keys, said):
    (bare.home.root / "script.json5").write_text(script)
    bare.start("broker")
    with pytest.raises(RuntimeError) as raised:
        bare.house.start("llm", env=keys)
    assert "configuration error" in str(raised.value) and said in str(raised.value)
