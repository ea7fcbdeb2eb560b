"""kill -9 of llm processes, at each step of a turn and at random: no prompt is lost, no command runs twice.

Two llm processes, the real SDK, the simulator. What the commands do is a line each in `done`; who was told
what is compared with the session files afterwards. BEIGE_HITS and BEIGE_SEED choose how many turns are hit
at random, and where.
"""

import asyncio
import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from beige.bus import Bus
from beige.errors import PeerLost, Unavailable
from beige.messages.base import Empty
from beige.messages.llm import PromptRequest
from beige.sessions import turn_options
from services.llm.conversation import NOT_STARTED, Prompt, ToolResult, TurnEnd, messages
from services.llm.sessions.journal import read_journal
from tests.processes.llm_stage import KEYS, new_session_stage
from tests.simulator.replies import Fault, Tool, reply
from tests.simulator.validity import problem

NURSERY = Path(__file__).with_name("llm_nursery.py")
HITS = int(os.environ.get("BEIGE_HITS", "100"))
SESSIONS = 8


class Nursery:
    """The llm processes of the house, by instance."""

    def __init__(self, house):
        environment = {**house.environment("0"), **KEYS}
        self._log = (house.home.logs / "llm.log").open("a")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(NURSERY)], env=environment, cwd="/", text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip
        self.pids = {}

    def start(self, instance):
        told = self._ask(f"start {instance}", 2)
        assert "READY" in told, f"it did not start: {told}"
        self.pids[instance] = next(int(line.split()[1]) for line in told if line.startswith("pid"))

    def kill(self, instance):
        assert self._ask(f"kill {self.pids[instance]}", 1)[0].startswith("killed")

    def _ask(self, command, lines):
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return [self._process.stdout.readline().strip() for _ in range(lines)]

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        self._process.stdout.close()
        self._log.close()


@dataclass
class Script:
    """Where a turn stands still, so that it can be killed exactly there."""

    hang: int | None = None
    """The model stops speaking after so many commands have run, ..."""
    after: int = 0
    """... when so many events of its answer were sent."""
    long: str = ""
    """This command does not end."""


SCRIPT = Script()


def model(request):
    """Three commands in two answers, then the last word. Knows the turn by its prompt."""
    blocks = [(m["role"], block) for m in request.body["messages"] for block in m["content"]]
    results = 0
    for role, block in reversed(blocks):
        if role == "user" and block["type"] == "text":
            task = block["text"]
            break
        results += block["type"] == "tool_result"
    one, two, three = (command(task, letter) for letter in "abc")
    fault = Fault("hang", SCRIPT.after) if results == SCRIPT.hang else None
    if results == 0:
        return reply("I begin. ", one, two, fault=fault)
    if results == 2:
        return reply("And now. ", three, fault=fault)
    return reply("All done ", f"with {task}.", fault=fault)


def command(task, letter):
    rest = "sleep 60" if letter == SCRIPT.long else "sleep 0.02; echo off"
    return Tool("exec", {"command": f"echo {task}.{letter} >>done; echo on; {rest}"}, id=f"{task}-{letter}")


@pytest.fixture(scope="module")
def running():
    with new_session_stage(model) as stage:
        stage.start("broker", "policy", "audit", "sandbox")
        stage.nursery = Nursery(stage.house)
        for instance in "01":
            stage.nursery.start(instance)
        yield stage
        stage.nursery.close()


@pytest.fixture
def stage(running):
    running.clean()
    return running


@pytest.fixture
def script():
    def play(now):
        for field in fields(Script):
            setattr(SCRIPT, field.name, getattr(now, field.name))

    play(Script())
    yield play
    play(Script())


def done(stage):
    path = stage.work / "claude" / "done"
    return path.read_text().split() if path.exists() else []


def entries(stage, session):
    data = (stage.home.sessions / "claude" / f"{session}.jsonl").read_bytes()
    return read_journal(data, "claude", session).entries


def outcomes(stage, session):
    """Task to how its turn ended. Also checks that each prompt is there once, and its turn has one end."""
    found, task = {}, None
    for entry in entries(stage, session):
        if isinstance(entry, Prompt):
            assert task is None and entry.text not in found, f"{entry.text} is there twice"
            task = entry.text
        elif isinstance(entry, TurnEnd):
            found[task], task = entry.outcome, None
    assert task is None
    return found


async def ask(cli, session, task, seen=None):
    """As the caller is told: `answered`, `interrupted`; on a machine so busy that heartbeats are late also
    `unknown` (its own connection was lost, which cancels the turn) and `refused` (nobody to serve it)."""
    try:
        async with cli.open(
            "llm.prompt", PromptRequest(task), **turn_options("claude", session, "t")
        ) as stream:
            async for event in stream:
                if seen is not None:
                    await seen(event)
            assert (await stream.result()).text == f"All done with {task}."
            return "answered"
    except Unavailable:
        return "refused"
    except PeerLost as error:
        if "it was interrupted" in str(error):
            return "interrupted"
        assert "connection to the broker" in str(error)
        return "unknown"


async def serving(stage, cli):
    """The llm process that is at work, if one still is."""
    stats = await cli.call("bus.stats", Empty())
    pids = {peer.pid for peer in stats.peers if peer.service == "llm" and peer.in_flight}
    return next((instance for instance, pid in stage.nursery.pids.items() if pid in pids), None)


def shown(kind, text="", times=1):
    """Whether these events have come: the caller has seen so many of the kind, with the text in it."""
    return lambda events: sum(event.kind == kind and text in event.text for event in events) >= times


STEPS = {
    "before the first answer": (Script(hang=0), shown("accepted"), "", "interrupted"),
    "in the middle of an answer": (Script(hang=0, after=4), shown("text_delta"), "", "interrupted"),
    "in the first tool call": (Script(long="a"), shown("tool_output", "on"), "a", "interrupted"),
    "between two tool calls": (Script(long="b"), shown("tool_end"), "ab", "interrupted"),
    "in the second tool call": (Script(long="b"), shown("tool_output", "on", 2), "ab", "interrupted"),
    "before the second answer": (Script(hang=2), shown("tool_end", times=2), "ab", "interrupted"),
    "in the second answer": (Script(hang=2, after=4), shown("text_delta", "A"), "ab", "interrupted"),
    "in the last tool call": (Script(long="c"), shown("tool_output", "on", 3), "abc", "interrupted"),
    "in the last answer": (Script(hang=3, after=4), shown("text_delta", "All"), "abc", "interrupted"),
    "after the answer": (Script(), shown("message_end", times=3), "abc", "either"),
}
"""Where the turn stands still; what its caller has seen then; which commands may have run; how it ends."""


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step_of_a_turn(stage, script, step):
    still, reached, may_run, ends = STEPS[step]
    script(still)

    async def steps(cli):
        events, came = [], asyncio.Event()

        async def seen(event):
            events.append(event)
            if reached(events):
                came.set()

        first = asyncio.create_task(ask(cli, "s1", "first", seen))
        async with asyncio.timeout(60):
            await came.wait()
        victim = await serving(stage, cli)
        if victim is not None:
            await asyncio.to_thread(stage.nursery.kill, victim)
        script(Script())
        told = [await first, await ask(cli, "s1", "second")]  # the second one on the other process, at once
        if victim is not None:
            await asyncio.to_thread(stage.nursery.start, victim)
        return [*told, await ask(cli, "s1", "third")]

    told = stage.run(steps)
    assert told[1:] == ["answered", "answered"]
    assert told[0] == outcomes(stage, "s1")["first"]
    assert ends in (told[0], "either")
    ran = "".join(effect[-1] for effect in done(stage) if effect.startswith("first"))
    assert may_run.startswith(ran) and len(ran) >= len(may_run) - ("between" in step)
    assert_sound(stage, ["s1"])


@pytest.mark.timeout(900)
def test_killed_at_random_points_with_many_sessions_under_way(stage):
    seed = int(os.environ.get("BEIGE_SEED", "0")) or random.SystemRandom().randrange(2**32)
    told = {f"s{n}": {} for n in range(SESSIONS)}
    kills = asyncio.run(kill_at_random(stage, random.Random(seed), told))
    print(f"BEIGE_SEED={seed}: {kills} kills hit {hits(told)} of {sum(map(len, told.values()))} turns")
    assert hits(told) >= HITS
    for session, turns in told.items():
        ended = outcomes(stage, session)
        known = {task: how for task, how in turns.items() if how != "unknown"}
        expected = {task: how for task, how in known.items() if how != "refused"}
        assert {task: how for task, how in ended.items() if task in known} == expected, (
            "every prompt is there once, and ended as its caller was told"
        )
        answered = [task for task, how in turns.items() if how == "answered"]
        assert {f"{task}.{letter}" for task in answered for letter in "abc"} <= set(done(stage))
        assert ask_again(stage, session) == "answered"
    assert_sound(stage, told)


async def kill_at_random(stage, chance, told):
    """Kill one llm process after the other until `HITS` turns were hit; how often."""
    over = asyncio.Event()

    async def converse(cli, session):
        for number in itertools.count():
            if over.is_set():
                return
            task = f"{session}x{number}"
            told[session][task] = await ask(cli, session, task)

    async with Bus(stage.home, "cli/0") as cli, asyncio.TaskGroup() as group:
        for session in told:
            group.create_task(converse(cli, session))
        try:
            for kills in itertools.count():
                if hits(told) >= HITS:
                    return kills
                await asyncio.sleep(chance.uniform(0, 0.25))  # the random point
                for act in (stage.nursery.kill, stage.nursery.start):
                    await asyncio.to_thread(act, str(kills % 2))
        finally:
            over.set()


def hits(told):
    return sum(how == "interrupted" for turns in told.values() for how in turns.values())


def ask_again(stage, session):
    return stage.run(lambda cli: ask(cli, session, f"{session}xlast"))


def assert_sound(stage, sessions):
    repeated = [effect for effect, times in Counter(done(stage)).items() if times > 1]
    assert repeated == [], "a command ran twice"
    started = [line for line in stage.audit() if (line["phase"], line["tool"]) == ("started", "exec")]
    assert len(started) >= len(done(stage)), "a command ran without a record"
    assert stage.simulator.problems == [], "a request that the API would refuse"
    for session in sessions:
        found = entries(stage, session)
        assert problem([*messages(found), Prompt(text="next")]) == ""
        claims = {e.tool_id: e.text for e in found if isinstance(e, ToolResult)}
        for tool_id, text in claims.items():
            ran = tool_id.replace("-", ".") in done(stage)
            if text == NOT_STARTED:
                assert not ran, f"{tool_id} ran, and the model is told that it did not"
            elif "stdout" in text:
                assert ran
