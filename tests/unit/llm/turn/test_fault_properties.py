"""Whatever goes wrong with the models, a turn ends in one way, and nothing of it is lost or done twice.

The real runner, session file, fallback and SDKs against the simulator; played are the caller, the tools, and
policy's leases.
"""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from beige.config import AgentConfig
from beige.errors import Failed
from services.llm.conversation import Assistant, Image, Prompt, Text, ToolResult, TurnEnd, messages
from services.llm.models.attempts import Models
from services.llm.providers.anthropic_messages import AnthropicMessages
from services.llm.providers.openai_completions import OpenAICompletions
from services.llm.providers.openai_responses import OpenAIResponses
from services.llm.sessions.files import Sessions
from services.llm.turn.core import Turn
from services.llm.turn.outbox import Outbox
from services.llm.turn.runner import Runner
from tests.simulator import validity
from tests.simulator.replies import Fault, Raw, Refusal, Reply, Say, Silence, Think, Tool
from tests.simulator.server import Simulator

KEY = "sk-0123456789abcdef0123"
OPEN = {
    "m": lambda url: AnthropicMessages("m", api_key=KEY, base_url=url),
    "c": lambda url: OpenAICompletions("c", api_key=KEY, base_url=f"{url}/v1"),
    "r": lambda url: OpenAIResponses("r", api_key=KEY, base_url=f"{url}/v1"),
}
PNG = Image("image/png", b"png")

faults = st.builds(
    Fault,
    st.sampled_from(["cut", "malformed", "error_event", "end"]),
    st.integers(0, 14),
    st.sampled_from(["overloaded_error", "rate_limit_error", "server_error", "invalid_request_error"]),
)
refusals = st.sampled_from([
    *[Refusal(status) for status in (529, 503, 500, 408, 401, 403, 404, 400, 402, 307)],
    Refusal(429, headers={"retry-after": "70"}),
    Refusal(400, "invalid_request_error", "prompt is too long"),
    Refusal(502, body="<html>bad gateway", content_type="text/html"),
    Raw(b"<html>log in", "text/html"),
    Raw(b"data: {\n\n"),
    Raw(b"event: message_start\ndata: {}\n\n", cut=True),
])  # fmt: skip


@st.composite
def replies(draw):
    """Ids of calls are those of small servers: the same ones in each answer."""
    content = [Say(draw(st.sampled_from(["words", "wörter ✓ " * 20])), draw(st.integers(1, 6)))]
    if draw(st.booleans()):
        content.insert(0, Think("let me see"))
    raw = draw(st.sampled_from([None, None, "", '{"command": "l', "[]"]))
    for number in range(draw(st.integers(0, 3))):
        content.append(Tool("exec", {"command": "ls"}, draw(st.sampled_from([f"call_{number}", ""])), 3, raw))
    return Reply(
        tuple(content), fault=draw(st.none() | faults), reasoning_tokens=draw(st.sampled_from([0, 3]))
    )


answers = st.lists(replies() | refusals | st.just(Silence()), max_size=6)
turns = st.tuples(answers, st.none() | st.integers(1, 25), st.permutations("mcr"))
"""What the models answer, at which step the user cancels, and the order of the models."""


class Lease:
    max_tokens = None

    async def report(self, report):
        return 9.0 if report.kind == "rate_limited" else 0.0


class Stage:
    """One session. What its models are to answer, and what came of it."""

    def __init__(self, providers, simulator, root):
        self.providers, self.simulator, self.sessions = providers, simulator, Sessions(root)
        self.given, self.ran, self.told = [], Counter(), []
        self.number = 0
        self.script, self.steps, self.task, self.loop = [], None, None, None

    async def play(self, script, steps, order):
        """One turn. How it ended, and the session's entries after it."""
        self.script, self.steps, self.told, self.given = list(script), steps, [], []
        refs = [{"provider": name, "model": "claude-haiku-4-5"} for name in order]
        agent = AgentConfig.model_validate(
            {"model": refs[0], "fallbackModels": refs[1:], "tools": (), "sandbox": {"image": "x"}},
            strict=False,
        )
        models = Models(agent, self.providers, watchdog_s=60, pauses_s=(0.0, 0.0, 0.0))
        async with self.sessions.open("a", "s", self.send) as session:
            before = len(session.entries)
            turn = Turn("s", session.entries, model=models.label, max_turns=4)
            self.loop = asyncio.get_running_loop()
            self.task = asyncio.create_task(self.turn(turn, models, session))
            how, result = await self.task
        async with self.sessions.open("a", "s", self.send) as session:
            assert session.repaired == [], "the file was whole"
            return how, result, session.entries[before:], list(session.entries)

    async def turn(self, turn, models, session):
        try:
            async with Outbox(self.send) as outbox:
                runner = Runner(turn, self.system, models.turn(self, {}), self, session, outbox.send)
                return "answered", await runner.run(Prompt(text="x"))
        except asyncio.CancelledError:
            return "cancelled", None
        except Failed as error:
            return "failed", error

    def answer(self, request):
        """In the simulator's thread. A model that hangs makes the user cancel."""
        answer = self.script.pop(0) if self.script else Reply((Say("the end"),))
        if isinstance(answer, Silence):
            self.loop.call_soon_threadsafe(self.task.cancel)
        elif isinstance(answer, Reply):
            self.number += 1
            answer = replace(answer, input_tokens=1000 + self.number)  # to know it again
            self.given.append(answer)
        return answer

    # --- what the runner sees --------------------------------------------------------------------

    async def step(self):
        await asyncio.sleep(0)
        if self.steps is not None:
            self.steps -= 1
            if self.steps == 0:
                self.task.cancel()
                await asyncio.sleep(0)

    async def system(self):
        await self.step()
        return "s"

    async def send(self, event):
        if not isinstance(event, str):
            self.told.append(event)
        await self.step()

    async def run(self, call):
        self.ran[call.id] += 1
        await self.step()
        return ToolResult(tool_id=call.id, tool=call.name, content=[Text("ok"), PNG])

    @asynccontextmanager
    async def take(self, provider, model, input_tokens):
        await self.step()
        yield Lease()


OUTCOMES = {
    "answered": {"answered", "max_turns"},
    "failed": {"failed"},
    "cancelled": {"cancelled", "answered", "max_turns", "failed"},
}
"""A cancel that comes when the turn's own end is decided, and not yet told, changes nothing."""


def check(stage, how, result, added, entries):
    ends = [entry for entry in added if isinstance(entry, TurnEnd)]
    assert len(ends) == 1 and ends[0].outcome in OUTCOMES[how]
    if how == "failed":
        assert ends[0].error == str(result) and any(name in str(result) for name in ("m/", "c/", "r/"))
    assert validity.problem([*messages(entries), Prompt(text="next")]) == ""
    assert stage.simulator.problems == [], "an API would have refused what was sent"
    assert set(stage.ran.values()) <= {1}, "a call ran twice"
    said = [entry for entry in added if isinstance(entry, Assistant)]
    spent = [entry.usage for entry in said if entry.usage]
    whole = [reply.used for reply in stage.given if reply.fault is None]
    assert all(usage in [reply.used for reply in stage.given] for usage in spent), "usage nobody told"
    if how != "cancelled":
        assert [usage for usage in spent if usage in whole] == whole, "an answer was lost"
    if how == "answered":
        assert result.usage == total(spent)
        assert result.usage == total(event.usage for event in stage.told if event.kind == "message_end")


def total(usages):
    counted = Counter()
    for usage in usages:
        counted.update(usage)
    return dict(counted)


@pytest.fixture(scope="module")
def house():
    """One simulator and the providers, for all examples."""
    current = []
    with Simulator(lambda request: current[0].answer(request)) as simulator, asyncio.Runner() as runner:

        async def opened():
            return {name: make(simulator.url) for name, make in OPEN.items()}

        async def closed():
            for provider in providers.values():
                await provider.close()

        providers = runner.run(opened())
        yield runner, simulator, providers, current
        runner.run(closed())


CUT = Reply((Say("w"), Tool("exec", {"command": "ls"}, "call_0")), fault=Fault("cut", 5))
WHOLE = Reply((Think("hm"), Say("w"), Tool("exec", {"command": "ls"}, "call_0"), Tool("exec", {}, "call_0")))


@pytest.mark.timeout(600)
@given(st.lists(turns, min_size=1, max_size=3))
@example([([WHOLE, CUT, WHOLE, Refusal(529), WHOLE], None, "mcr"), ([WHOLE, WHOLE], None, "crm")])
@example([([WHOLE, CUT, Silence()], None, "rcm"), ([WHOLE, Refusal(401), WHOLE], 9, "cmr")])
@example([([Refusal(401), Refusal(400), Refusal(403)], None, "mcr"), ([Refusal(529)] * 6, None, "rmc")])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_turn_ends_in_one_way_and_nothing_is_lost_or_done_twice(house, played):
    runner, simulator, providers, current = house

    async def run():
        with TemporaryDirectory() as root:
            stage = Stage(providers, simulator, Path(root))
            current[:] = [stage]
            simulator.reset()
            for script, steps, order in played:
                check(stage, *await stage.play(script, steps, order))
            how, result, *rest = await stage.play([], None, "mcr")
            check(stage, how, result, *rest)
            assert (how, result.text) == ("answered", "the end"), "the session goes on"

    runner.run(asyncio.wait_for(run(), 120))
