"""Threat: an llm worker in hostile hands that wants its agent to use more than its budget.

It doesn't report, reports nonsense or nothing, asks for other agents' models, takes many leases at once,
replays a report, or takes up leases that aren't its own. policy, audit and broker are the real processes.
"""

import asyncio
import json

import pytest

from beige.errors import Denied, Malformed, NotFound, Overloaded
from beige.messages import encode
from beige.messages.llm import PromptRequest
from beige.messages.policy import LeaseReport, LeaseRequest, Usage
from beige.testing import House, short_home
from tests.processes.lease_worker import lease, refusal, with_workers

ANSWER = 8000
"""`maxTokens`: what a call reserves, with nothing said about its input."""


def agent(model="m", **budget):
    ref = {"provider": "p", "model": model, "maxTokens": ANSWER}
    return {"model": ref, "tools": [], "sandbox": {"image": "i"}, "budget": budget}


CONFIG = {
    "llm": {
        "providers": {
            "p": {
                "api": "openai-completions",
                "baseUrl": "http://127.0.0.1:9",
                "models": {name: {"price": {"input": 1, "output": 10}} for name in ("m", "dear")},
            }
        }
    },
    "agents": {
        "silent": agent(day={"tokens": 50_000}),
        "gone": agent(day={"usd": 0.5}),
        "liar": agent(day={"tokens": 500_000}),
        "free": agent(day={"tokens": 500_000}),
        "many": agent(day={"tokens": 500_000}),
        "replay": agent(total={"tokens": 500_000}),
        "held": agent(total={"tokens": 500_000}),
        "modest": agent(day={"tokens": 500_000}),
        "rich": agent("dear"),
    },
}


@pytest.fixture(scope="module")
def running():
    with short_home() as home:
        home.config.write_text(json.dumps(CONFIG))
        with House(home) as house:
            for name in ("broker", "policy", "audit"):
                house.start(name)
            yield house


def records(house, agent):
    lines = [json.loads(line) for line in house.home.audit_log.read_text().splitlines()]
    return [line for line in lines if line["agent"] == agent and line["type"] == "model_call"]


async def until_refused(play, agent, call):
    """How many leases `call(request)` could use until one was refused, and the refusal."""
    refused = []

    async def do(request):
        body = await call(request)
        if body is not None:
            refused.append(body)

    for number in range(20):
        await play.ask(do, agent)
        if refused:
            return number, refused[0]
    raise AssertionError("the budget was never at its end")


async def taken(request, **fields):
    """True if a lease is granted; then it is left without a word. Else the refusal."""
    async with lease(request, **fields) as stream:
        return await stream.result() if not hasattr(stream, "granted") else None


def test_a_worker_that_never_reports_pays_all_that_was_reserved(running):
    async def play(p):
        number, refused = await until_refused(p, "silent", taken)
        assert number == 50_000 // ANSWER + 1, "the last one got what was left"
        assert refused.over_budget and not refused.granted
        assert refused.reason.startswith("Budget exceeded: agent 'silent' on ")
        line = await p.account("silent", "day")
        assert (line.used_tokens, line.reserved_tokens, line.limit_tokens) == (50_000, 0, 50_000)

    with_workers(running, play)
    last = records(running, "silent")[-1]
    assert (last["decision"], last["kind"]) == ("denied", "over_budget")
    assert last["error"].startswith("Budget exceeded: agent 'silent'")


def test_a_worker_that_dies_pays_all_that_was_reserved(running):
    async def play(p):
        for n in range(5):
            asked = asyncio.create_task(p.ask(_die, "gone"))
            with pytest.raises(Exception, match=r"cancelled|peer_lost|died|connection"):
                await asked
            line = await p.account("gone", "day")
            assert (line.used_nano, line.reserved_nano) == ((n + 1) * ANSWER * 10_000, 0)

    async def _die(request):
        async with lease(request):
            raise asyncio.CancelledError

    with_workers(running, play)


@pytest.mark.parametrize(
    "report",
    [
        encode({"outcome": "answered", "usage": {"input_tokens": -1}}),
        encode({"outcome": "answered", "usage": {"input_tokens": -(2**62), "output_tokens": 5}}),
        encode({"outcome": "answered", "usage": {"output_tokens": 10_000_001}}),
        encode({"outcome": "answered", "usage": {"output_tokens": 2**64 - 1}}),
        encode({"outcome": "answered", "usage": {"output_tokens": 1.5}}),
        encode({"outcome": "answered", "usage": {"output_tokens": "1"}}),
        encode({"outcome": "answered", "usage": {"output_tokens": 1, "refund": 1}}),
        encode({"outcome": "answered", "usage": []}),
        encode({"outcome": "answered", "cost": 0}),
        b"\xc1",
    ],
    ids=range(10),
)
def test_a_report_that_is_nonsense_is_refused_and_costs_what_was_reserved(running, report):
    async def play(p):
        before = (await p.account("liar", "day")).used_tokens

        async def do(request):
            async with lease(request) as stream:
                await stream.send(report)
                with pytest.raises(Malformed, match="report"):
                    await stream.result()

        await p.ask(do, "liar")
        after = await p.account("liar", "day")
        assert (after.used_tokens - before, after.reserved_tokens) == (ANSWER, 0)

    with_workers(running, play)


@pytest.mark.parametrize(
    "report",
    [LeaseReport("answered"), LeaseReport("answered", usage=Usage()), LeaseReport("failed", "stream_cut"),
     LeaseReport("failed", "whatever"), LeaseReport("answered", "rate_limited", 429), None],
    ids=["no usage", "zero", "cut", "unknown", "answered for free", "no report, only the end"],
)  # fmt: skip
def test_no_answer_is_free(running, report):
    async def play(p):
        before = (await p.account("free", "day")).used_tokens

        async def do(request):
            async with lease(request) as stream:
                if report is not None:
                    await stream.send(encode(report))
                await stream.end()
                assert (await stream.result()).granted

        await p.ask(do, "free")
        assert (await p.account("free", "day")).used_tokens - before == ANSWER

    with_workers(running, play)


def test_no_agent_gets_a_lease_for_anothers_model_and_the_try_is_in_the_audit_log(running):
    async def play(p):
        async def do(request):
            with pytest.raises(Denied, match="model 'p/dear' not allowed for agent 'modest'"):
                await refusal(request, "p", "dear")
            with pytest.raises(Denied, match="inherited from the parent call"):
                async with request.open("policy.lease", LeaseRequest("p", "dear"), agent="rich") as stream:
                    await stream.result()

        await p.ask(do, "modest")
        assert (await p.account("rich", "day")).used_tokens == 0

    with_workers(running, play)
    (denied,) = [line for line in records(running, "modest") if line["decision"] == "denied"]
    assert denied["args"] == ["p/dear"] and denied["src"] == "llm/0" and denied["phase"] == "finished"


def test_many_leases_at_once_reserve_and_cost_as_one(running):
    async def play(p):
        async def do(request):
            async with lease(request) as stream:
                rest = await asyncio.gather(*[refusal(request) for _ in range(100)], return_exceptions=True)
                assert {type(answer) for answer in rest} == {Overloaded}
                line = await p.account("many", "day")
                assert (line.used_tokens, line.reserved_tokens) == (0, ANSWER)
                await stream.send(encode(LeaseReport("answered", usage=Usage(5, 6))))
                await stream.end()
                await stream.result()

        await p.ask(do, "many")
        line = await p.account("many", "day")
        assert (line.used_tokens, line.reserved_tokens) == (11, 0)

    with_workers(running, play)


def test_a_worker_cannot_make_policy_reserve_less_than_the_longest_answer(running):
    async def play(p):
        async def do(request):
            async with lease(request, input_tokens=0):
                assert (await p.account("modest", "day")).reserved_tokens == ANSWER

        await p.ask(do, "modest")

    with_workers(running, play)


def test_a_report_counts_once_however_often_it_is_sent(running):
    report = encode(LeaseReport("answered", usage=Usage(100, 10)))

    async def play(p):
        names = []

        async def do(request):
            async with lease(request) as stream:
                names.append(stream.granted.lease)
                for _ in range(5):
                    await stream.send(report)
                await stream.end()
                await stream.result()
            for name in (names[0], names[0][:-1], "invented"):
                with pytest.raises(NotFound, match="no lease"):
                    await refusal(request, holding=name)

        for _ in range(2):
            await p.ask(do, "replay")
        line = await p.account("replay", "total")
        assert (line.used_tokens, line.used_nano, line.reserved_tokens) == (220, 2 * 200_000, 0)

    with_workers(running, play)


def test_a_lease_is_taken_up_by_its_own_prompt_alone(running):
    """Two prompts of two workers, and a policy that is killed while one holds a lease."""
    report = encode(LeaseReport("answered", usage=Usage(100, 10)))

    async def play(p):
        held, stolen, name = asyncio.Event(), asyncio.Event(), []

        async def owner(request):
            async with lease(request) as stream:
                name.append(stream.granted.lease)
                await asyncio.to_thread(running.kill, "policy")
                with pytest.raises(Exception, match="policy/0 died"):
                    await stream.result()
            await asyncio.to_thread(running.start, "policy")
            held.set()
            await stolen.wait()
            async with lease(request, holding=name[0]) as stream:
                assert stream.granted.lease == name[0]
                await stream.send(report)
                await stream.end()
                assert (await stream.result()).granted

        async def thief(request):
            await held.wait()
            try:
                for fields in ({"holding": name[0]}, {"holding": name[0], "input_tokens": 1}):
                    with pytest.raises(NotFound, match="no lease"):
                        await refusal(request, **fields)
            finally:
                stolen.set()

        first, second = p.workers
        first.do, second.do = owner, thief

        async def ask(session):
            return await p.cli.call(
                "llm.prompt", PromptRequest("x"), agent="held", session=session, ttl_s=120
            )

        await asyncio.gather(ask("a"), ask("b"))
        line = await p.account("held", "total")
        assert (line.used_tokens, line.reserved_tokens) == (110, 0)

    with_workers(running, play, number=2)
