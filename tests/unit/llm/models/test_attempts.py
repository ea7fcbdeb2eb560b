"""Attempts with the real SDKs against the simulator; policy is played at the Protocol."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest

from beige.config import AgentConfig
from services.llm.conversation import Prompt
from services.llm.events import MessageDone, MovedOn, TextDelta
from services.llm.models.attempts import Models
from services.llm.models.leases import Cooling
from services.llm.providers.anthropic_messages import AnthropicMessages
from services.llm.providers.failures import ModelError
from services.llm.providers.openai_completions import OpenAICompletions
from tests.simulator.replies import Fault, Refusal, Silence, Tool, reply

KEY = "sk-0123456789abcdef"
CLAUDE, GLM = "a/claude-haiku-4-5", "z/glm-5"
HELLO = (Prompt(text="hello"),)


class Desk:
    """Policy: what it was asked and told, and which leases are out."""

    def __init__(self):
        self.told, self.out = [], 0
        self.cooling = {}

    @asynccontextmanager
    async def take(self, provider, model, input_tokens):
        if left := self.cooling.get(provider):
            raise Cooling(left, f"cooling down, {left:.0f} s to go")
        self.out += 1
        assert self.out == 1, "two leases at once"
        desk = self

        class Held:
            max_tokens = None

            async def report(self, report):
                desk.told.append(
                    (provider, report.kind or report.outcome, report.status, report.retry_after_s)
                )
                return 9.0 if report.kind == "rate_limited" else 0.0

        try:
            yield Held()
        finally:
            self.out -= 1


def agent():
    refs = [{"provider": "a", "model": "claude-haiku-4-5"}, {"provider": "z", "model": "glm-5"}]
    return AgentConfig.model_validate(
        {"model": refs[0], "fallbackModels": refs[1:], "tools": (), "sandbox": {"image": "x"}}, strict=False
    )


def play(simulator, answers=1, desk=None, until=None, **options):
    """The events of so many answers of one prompt, and what policy was told. `until`: leave there."""
    desk = desk or Desk()

    async def run():
        providers = {
            "a": AnthropicMessages("a", api_key=KEY, base_url=simulator.url),
            "z": OpenAICompletions("z", api_key=KEY, base_url=f"{simulator.url}/v1"),
        }
        turn = Models(agent(), providers, pauses_s=(0.0, 0.0, 0.0), **options).turn(desk, {})
        seen = []
        try:
            for _ in range(answers):
                async with aclosing(turn.stream("s", HELLO)) as events:
                    async for event in events:
                        seen.append(event)
                        if isinstance(event, MessageDone):
                            assert desk.out == 0, "the slot is free before the tools run"
                        if until is not None and isinstance(event, until):
                            break
        finally:
            for provider in providers.values():
                await provider.close()
        return seen

    events = asyncio.run(run())
    assert desk.out == 0
    return events, desk


def moves(events):
    return [(event.failed, event.kind, event.model) for event in events if isinstance(event, MovedOn)]


def speaker(events):
    return events[-1].message.model


def test_an_answer_is_reported(simulator):
    simulator.answer(reply("hello"))
    events, desk = play(simulator)
    assert speaker(events) == CLAUDE and desk.told == [("a", "answered", None, None)]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Refusal(529, "overloaded_error"), ("a", "overloaded", 529, None)),
        (Refusal(503, headers={"retry-after": "9"}), ("a", "overloaded", 503, 9.0)),
        (Refusal(429, headers={"retry-after-ms": "1500"}), ("a", "rate_limited", 429, 1.5)),
        (Refusal(401), ("a", "auth", 401, None)),
        (Refusal(400, "invalid_request_error", "prompt is too long"), ("a", "context_too_long", 400, None)),
        (reply("half", fault=Fault("cut", 4)), ("a", "stream_cut", None, None)),
        (reply("half", fault=Fault("malformed", 4)), ("a", "bad_response", None, None)),
    ],
    ids=["529", "503", "429", "401", "too long", "cut", "malformed"],
)
def test_each_failure_is_reported_as_it_was_and_the_fallback_answers(simulator, fault, told):
    simulator.answer(fault, reply("from glm"))
    events, desk = play(simulator)
    assert desk.told == [told, ("z", "answered", None, None)]
    assert moves(events) == [(CLAUDE, told[1], GLM)] and speaker(events) == GLM


@pytest.mark.parametrize(
    "silence", [Silence(), reply("half", fault=Fault("hang", 4))], ids=["first", "later"]
)
def test_the_watchdog_ends_a_silent_attempt(simulator, silence):
    simulator.answer(silence, reply("from glm"))
    events, desk = play(simulator, watchdog_s=0.4)
    assert desk.told[0] == ("a", "timeout", None, None) and speaker(events) == GLM
    (moved,) = [event for event in events if isinstance(event, MovedOn)]
    assert moved.reason == f"{CLAUDE}: the model was silent for 0.4 s"
    simulator.wait_for(lambda: simulator.disconnected == 1)


def test_a_cooling_model_is_not_called_and_the_primary_is_first_again_afterwards(simulator):
    desk = Desk()
    desk.cooling = {"a": 30.0}
    simulator.answer(reply("from glm"), reply("from claude"))
    events, _ = play(simulator, desk=desk)
    assert moves(events) == [(CLAUDE, "rate_limited", GLM)]
    assert events[0].reason == f"{CLAUDE}: cooling down, 30 s to go"
    desk.cooling = {}
    events, _ = play(simulator, desk=desk)
    assert speaker(events) == CLAUDE


def test_a_limited_model_is_not_asked_twice_for_one_answer(simulator):
    simulator.answer(Refusal(429), *[Refusal(529)] * 3)
    with pytest.raises(ModelError) as raised:
        play(simulator)
    assert [request.body["model"] for request in simulator.requests] == ["claude-haiku-4-5", *["glm-5"] * 3]
    assert raised.value.kind == "exhausted"
    assert f"{CLAUDE}: rate limited (429)" in str(raised.value) and "(3 times)" in str(raised.value)


def test_a_call_whose_id_was_used_before_gets_another_one(simulator):
    twice = reply(Tool("exec", {"command": "a"}, id="call_0"), Tool("exec", {"command": "b"}, id="call_0"))
    simulator.answer(twice)
    events, _ = play(simulator)
    first, second = events[-1].message.tool_calls
    assert first.id == "call_0" and second.id.startswith("call_") and second.id != first.id
    assert (first.args, second.args) == ({"command": "a"}, {"command": "b"})


def test_failures_in_a_row_are_counted_over_the_answers_of_a_prompt(simulator):
    for n in range(3):
        simulator.answer(Refusal(529), reply(f"answer {n}"))
    simulator.answer(reply("answer 3"))
    events, _ = play(simulator, answers=4)
    assert len(moves(events)) == 3 and speaker(events) == GLM
    assert [request.body["model"] for request in simulator.requests][-1] == "glm-5"


def test_giving_up_in_the_middle_gives_the_lease_back_unreported(simulator):
    simulator.answer(reply("hello world", fault=Fault("hang", 4)))
    _, desk = play(simulator, until=TextDelta)
    assert desk.told == []
    simulator.wait_for(lambda: simulator.disconnected == 1)
