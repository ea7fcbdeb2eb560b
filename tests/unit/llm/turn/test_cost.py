"""What an answer and a turn cost, from the simulator's usage to what the caller is told."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest

from beige.cli.prompt import used
from beige.config import AgentConfig
from beige.messages.llm import PromptResult
from beige.money import Price
from services.llm.conversation import Assistant, Prompt, Text
from services.llm.events import Emit, Finish, MessageDone, PromptAccepted
from services.llm.models.attempts import Models
from services.llm.providers.anthropic_messages import AnthropicMessages
from services.llm.turn.core import Turn
from tests.simulator.replies import reply

PRICES = {("a", "dear"): Price(3_000_000, 15_000_000, 300_000, 3_750_000)}


class Desk:
    max_tokens = None

    @asynccontextmanager
    async def take(self, *_, **__):
        yield self

    async def report(self, *_):
        return 0.0


def answered(simulator, model):
    agent = AgentConfig.model_validate(
        {"model": {"provider": "a", "model": model}, "tools": (), "sandbox": {"image": "x"}}, strict=False
    )

    async def run():
        provider = AnthropicMessages("a", api_key="sk-0123456789", base_url=simulator.url)
        try:
            turn = Models(agent, {"a": provider}, PRICES).arranged(agent).turn(Desk(), {})
            async with aclosing(turn.stream("s", (Prompt(text="hello"),))) as events:
                return [event async for event in events][-1].message
        finally:
            await provider.close()

    return asyncio.run(run())


@pytest.mark.parametrize(("model", "cost"), [("dear", 7 * 3_000 + 5 * 15_000), ("unknown", None)])
def test_an_answer_has_its_cost(simulator, model, cost):
    simulator.answer(reply("hi", input_tokens=7, output_tokens=5))
    assert answered(simulator, model).cost_nano == cost


@pytest.mark.parametrize(
    ("costs", "told"), [((1_500_000, 2_000_001), 0.003500001), ((1, None), None), ((None, 1), None)]
)
def test_a_turn_costs_what_its_answers_cost(costs, told):
    turn = Turn("s", [], model="a/dear", max_turns=9)
    turn.handle(PromptAccepted(Prompt(text="x")))
    seen = []
    for cost in costs:
        turn.over = False
        message = Assistant(model="a/dear", content=[Text("x")], stop_reason="end_turn", cost_nano=cost)
        commands = turn.handle(MessageDone(message))
        seen += [c.event.cost for c in commands if isinstance(c, Emit) and c.event.kind == "message_end"]
    (finish,) = [command for command in commands if isinstance(command, Finish)]
    assert finish.result.cost == told
    assert seen == [None if cost is None else cost / 1e9 for cost in costs]


@pytest.mark.parametrize(
    ("usage", "cost", "text"),
    [
        ({}, None, ""),
        ({"input_tokens": 1000, "cache_read_tokens": 234, "output_tokens": 56, "reasoning_tokens": 9}, 0.0042,
         ", 1,234 tokens in, 56 out, $0.0042"),
        ({"input_tokens": 3}, None, ", 3 tokens in, 0 out"),
        ({"input_tokens": 3}, 0.0, ", 3 tokens in, 0 out"),
    ],
)  # fmt: skip
def test_what_the_prompt_command_says_of_it(usage, cost, text):
    assert used(PromptResult("s", "t", "end_turn", "m", usage=usage, cost=cost)) == text
