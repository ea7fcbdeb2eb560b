"""The seed's rules of fallback: for each API and each way to fail, who is asked next. Real SDKs against the
simulator; policy is played, its cooldowns are in `tests/processes/test_fallback.py`."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest

from beige.config import AgentConfig
from services.llm.conversation import Prompt
from services.llm.events import MessageDone, MovedOn
from services.llm.models.attempts import Models
from services.llm.models.leases import Cooling
from services.llm.providers.anthropic_messages import AnthropicMessages
from services.llm.providers.failures import ModelError
from services.llm.providers.openai_completions import OpenAICompletions
from services.llm.providers.openai_responses import OpenAIResponses
from tests.simulator.replies import Drip, Fault, Raw, Refusal, Say, Silence, Tool, reply
from tests.simulator.server import Simulator

KEY = "sk-0123456789abcdef0123"
OPEN = {
    "anthropic-messages": lambda url: AnthropicMessages("x", api_key=KEY, base_url=url),
    "openai-completions": lambda url: OpenAICompletions("x", api_key=KEY, base_url=f"{url}/v1"),
    "openai-responses": lambda url: OpenAIResponses("x", api_key=KEY, base_url=f"{url}/v1"),
}
api = pytest.mark.parametrize("api", OPEN)
DOWN = Refusal(529, "overloaded_error", "Overloaded")
WATCHDOG_S = 30.0


class Policy:
    """Leases everything that isn't cooling down; a rate limit cools down, nothing else does."""

    def __init__(self):
        self.cooling, self.told = set(), []

    @asynccontextmanager
    async def take(self, provider, model, input_tokens):
        if provider in self.cooling:
            raise Cooling(300, "cooling down")
        yield Lease(self, provider)


class Lease:
    max_tokens = None

    def __init__(self, policy, provider):
        self.policy, self.provider = policy, provider

    async def report(self, report):
        self.policy.told.append(
            (self.provider, report.kind or "answered", report.status, report.retry_after_s)
        )
        if report.kind == "rate_limited":
            self.policy.cooling.add(self.provider)
        return 300.0 if self.provider in self.policy.cooling else 0.0


class House:
    """The simulator, and a provider for each API and for the stand-in, over all tests."""

    def __init__(self, simulator, runner):
        self.simulator, self.runner = simulator, runner
        self.providers = runner.run(self.open(simulator.url))

    async def open(self, url):
        stand_in = OpenAICompletions("y", api_key=KEY, base_url=f"{url}/v1")
        return {name: make(url) for name, make in OPEN.items()} | {"y": stand_in}

    async def close(self):
        for provider in self.providers.values():
            await provider.close()

    def ask(self, api, *script, prompts=1, watchdog_s=WATCHDOG_S, alone=False, providers=None):
        """So many prompts, one after the other. Who was asked (x: the primary, y: its stand-in), what was
        told, and the answers' texts or the errors."""
        self.simulator.reset()
        self.simulator.answer(*script)
        policy, results = Policy(), []
        refs = [{"provider": "x", "model": "x"}] + ([] if alone else [{"provider": "y", "model": "y"}])
        agent = AgentConfig.model_validate(
            {"model": refs[0], "fallbackModels": refs[1:], "tools": (), "sandbox": {"image": "x"}},
            strict=False,
        )
        known = {"x": self.providers[api], "y": self.providers["y"]} | (providers or {})
        models = Models(agent, known, watchdog_s=watchdog_s, pauses_s=(0.0, 0.0, 0.0))
        for _ in range(prompts):
            results.append(self.runner.run(asyncio.wait_for(self.answer(models.turn(policy, {})), 120)))
        return "".join(request.body["model"] for request in self.simulator.requests), policy, results

    async def answer(self, turn):
        moved = []
        try:
            async with aclosing(turn.stream("s", (Prompt(text="hello"),))) as events:
                async for event in events:
                    if isinstance(event, MovedOn):
                        moved.append(event.kind)
                    if isinstance(event, MessageDone):
                        return event.message.text, moved
        except ModelError as error:
            return error, moved


@pytest.fixture(scope="module")
def house():
    with Simulator() as simulator, asyncio.Runner() as runner:
        house = House(simulator, runner)
        yield house
        runner.run(house.close())


def limited(**headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return Refusal(429, "rate_limit_error", "slow down", headers=headers)


HALF = (Say("half an answer"), Tool("exec", {"command": "ls"}, "c1"))
TRANSIENT = {
    "529": (DOWN, "overloaded"),
    "503": (Refusal(503, body="upstream connect error", content_type="text/plain"), "overloaded"),
    "503 with retry-after": (Refusal(503, headers={"retry-after": "9"}), "overloaded"),
    "500": (Refusal(500), "overloaded"),
    "502 page": (Refusal(502, body="<html>bad gateway", content_type="text/html"), "overloaded"),
    "408": (Refusal(408), "timeout"),
    "overloaded in the stream": (reply(*HALF, fault=Fault("error_event", 6)), "overloaded"),
    "cut before the first event": (reply(*HALF, fault=Fault("cut", 0)), "connection"),
    "cut in the text": (reply(*HALF, fault=Fault("cut", 6)), "stream_cut"),
    "cut in a call": (reply(HALF[1], fault=Fault("cut", 5)), "stream_cut"),
    "ended too early": (reply(*HALF, fault=Fault("end", 6)), "stream_cut"),
    "malformed": (reply(*HALF, fault=Fault("malformed", 6)), "bad_response"),
    "a page": (Raw(b"<html>log in", "text/html"), "bad_response"),
}
HOPELESS = {
    "401": (Refusal(401), "auth"),
    "403": (Refusal(403), "auth"),
    "402": (Refusal(402), "billing"),
    "400": (Refusal(400, "invalid_request_error", "tools.0.name: String should match"), "bad_request"),
    "404 unknown model": (Refusal(404, "not_found_error", "model: x"), "bad_request"),
    "422": (Refusal(422, "invalid_request_error", "no"), "bad_request"),
    "a redirect": (Refusal(308, body=""), "bad_request"),
    "too long": (Refusal(400, "invalid_request_error", "prompt is too long: 9 > 8"), "context_too_long"),
    "no credit with 429": (Refusal(429, "insufficient_quota", "no credit"), "billing"),
}
LIMITED = {
    "no header": (limited(), None),
    "seconds": (limited(retry_after="7"), 7.0),
    "a fraction": (limited(retry_after="0.25"), 0.25),
    "ms": (limited(retry_after_ms="1500"), 1.5),
    "ms before seconds": (limited(retry_after_ms="1500", retry_after="9"), 1.5),
    "a date that is past": (limited(retry_after="Thu, 05 Mar 2020 12:00:00 GMT"), 0.0),
    "words": (limited(retry_after="soon"), None),
    "negative": (limited(retry_after="-5"), 0.0),
    "infinite": (limited(retry_after="inf"), None),
    "no number": (limited(retry_after="nan"), None),
    "a century": (limited(retry_after="3155760000"), 3155760000.0),
    "in the stream": (
        reply("x", fault=Fault("error_event", 3, "rate_limit_error", "Too many requests")),
        None,
    ),
    "words of a 500": (Refusal(500, "api_error", "rate limit exceeded"), None),
}


def rows(table):
    return pytest.mark.parametrize(("fault", "kind"), table.values(), ids=table.keys())


@api
@rows(TRANSIENT)
def test_what_may_pass_is_tried_again_on_the_next_pass_and_cools_nobody_down(house, api, fault, kind):
    asked, policy, results = house.ask(api, fault, DOWN, reply("back"), reply("again"), prompts=2)
    assert asked == "xyx" + "x", "the primary again in the second pass, and first for the next prompt"
    assert results == [("back", [kind, "overloaded"]), ("again", [])]
    assert policy.told[0][:2] == ("x", kind) and policy.cooling == set()


@api
@rows(HOPELESS)
def test_what_no_retry_cures_is_not_tried_again_for_this_prompt(house, api, fault, kind):
    asked, policy, results = house.ask(api, fault, DOWN, reply("there"), reply("first"), prompts=2)
    assert asked == "xyy" + "x"
    assert results == [("there", [kind, "overloaded"]), ("first", [])]
    assert policy.cooling == set()


@api
@rows(HOPELESS)
def test_alone_it_fails_at_once_with_its_own_reason(house, api, fault, kind):
    asked, _, [(error, moved)] = house.ask(api, fault, reply("never"), alone=True)
    assert asked == "x" and moved == [] and error.kind == kind
    assert str(error).startswith("x/x: ") and KEY not in str(error)


@api
@pytest.mark.parametrize(("fault", "wait_s"), LIMITED.values(), ids=LIMITED.keys())
def test_a_rate_limit_is_told_with_the_providers_word_and_the_model_is_left_alone(house, api, fault, wait_s):
    asked, policy, results = house.ask(api, fault, DOWN, reply("there"), reply("still there"), prompts=2)
    assert asked == "xyy" + "y", "not again in this prompt, nor in the next while it cools down"
    assert [text for text, _ in results] == ["there", "still there"]
    assert policy.told[0][0] == "x" and policy.told[0][1] == "rate_limited" and policy.told[0][3] == wait_s


@api
def test_three_failures_in_a_row_of_each_of_two_models_are_six_attempts(house, api):
    asked, _, [(error, moved)] = house.ask(api, *[DOWN] * 6, reply("never"))
    assert asked == "xyxyxy" and len(moved) == 5 and error.kind == "exhausted"


@api
def test_a_refusal_is_an_answer(house, api):
    stop = {"anthropic-messages": "refusal", "openai-completions": "content_filter",
            "openai-responses": "content_filter"}  # fmt: skip
    asked, _, results = house.ask(api, reply("I would rather not.", stop=stop[api]))
    assert (asked, results) == ("x", [("I would rather not.", [])])


def hangs(house, api, hang):
    """It is given up, and its connection closed. The time allowed is short: it is what is waited for."""
    asked, _, results = house.ask(api, hang, reply("there"), watchdog_s=1.5)
    house.simulator.wait_for(lambda: house.simulator.disconnected == 1)
    return (asked, results) == ("xy", [("there", ["timeout"])])


@api
def test_a_model_that_hangs_after_the_first_token_is_given_up(house, api):
    assert hangs(house, api, reply(*HALF, fault=Fault("hang", 6)))


@pytest.mark.parametrize("hang", [Silence(), Drip(0.01)], ids=["silent", "comments alone"])
def test_a_model_that_hangs_before_the_first_token_is_given_up(house, hang):
    assert hangs(house, "openai-completions", hang)


def test_a_model_that_is_slow_is_not_given_up(house):
    """Longer than the watchdog in all, never silent for so long. Pieces of a call are signs of life, too."""
    slow = Drip(0.05, reply(Say("slow", pieces=4), Tool("exec", pieces=60, raw="x" * 60)))
    asked, _, results = house.ask("openai-completions", slow, watchdog_s=2.5)
    assert (asked, results) == ("x", [("slow", [])])


WHERE = {
    "refused": ("http://127.0.0.1:9", "ConnectionRefusedError"),
    "TLS": ("https://{place}", "SSL"),
}


@api
@pytest.mark.parametrize(("where", "words"), WHERE.values(), ids=WHERE.keys())
def test_a_server_that_cant_be_reached_is_stood_in_for(house, api, where, words):
    async def opened():
        return OPEN[api](where.format(place=house.simulator.url.removeprefix("http://")))

    broken = house.runner.run(opened())
    asked, policy, results = house.ask(api, reply("a"), reply("b"), prompts=2, providers={"x": broken})
    assert asked == "yy" and results == [("a", ["connection"]), ("b", ["connection"])]
    _, _, [(error, _)] = house.ask(api, alone=True, providers={"x": broken})
    assert words in str(error) and policy.cooling == set()
    house.runner.run(broken.close())
