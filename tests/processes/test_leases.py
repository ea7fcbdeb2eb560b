"""`policy.lease` over a real bus, with llm workers as they may be in hostile hands."""

import asyncio
import json
import time

import pytest

from beige.bus import Bus
from beige.errors import Denied, Malformed, Overloaded
from beige.messages import encode
from beige.messages.policy import LeaseReport, LeaseRequest
from beige.messages.sandbox import ExecRequest, ExecResult
from beige.testing import House, short_home
from tests.processes.lease_worker import lease, refusal, with_workers

CONFIG = """
{ llm: { providers: { p: { api: "scripted", script: "s.json5", concurrency: 1 },
                      q: { api: "scripted", script: "s.json5" } } },
  agents: {
    travel: { model: { provider: "p", model: "m" }, fallbackModels: [{ provider: "q", model: "n" }],
              tools: [], sandbox: { image: "i" } },
    other: { model: { provider: "q", model: "secret" }, tools: [], sandbox: { image: "i" } },
  } }
"""
LIMITED = LeaseReport("failed", "rate_limited", 429, 600.0)


@pytest.fixture(scope="module")
def running():
    with short_home() as home:
        home.config.write_text(CONFIG)
        (home.root / "s.json5").write_text("[]")
        with House(home) as house:
            for name in ("broker", "policy", "audit"):
                house.start(name)
            yield house


def test_only_the_agents_own_models_are_leased_whatever_a_worker_asks(running):
    async def play(p):
        async def do(request):
            for provider, model in [("q", "secret"), ("p", "n"), ("q", "m"), ("none", "m")]:
                with pytest.raises(
                    Denied, match=f"model '{provider}/{model}' not allowed for agent 'travel'"
                ):
                    await refusal(request, provider, model)
            for named in ({"agent": "other"}, {"session": "another"}):
                with pytest.raises(Denied, match="inherited from the parent call"):
                    async with request.open("policy.lease", LeaseRequest("q", "secret"), **named) as stream:
                        await stream.result()
            async with lease(request, "q", "n"):
                pass

        await p.ask(do)

    with_workers(running, play)


@pytest.mark.parametrize("user", ["llm/0", "cli/0", "tools/0", "bridge/0"])
def test_without_a_prompt_nobody_gets_a_lease(running, user):
    async def main():
        async with Bus(running.home, user) as bus:
            with pytest.raises(Denied, match=r"may not call|needs an agent"):
                await bus.call("policy.lease", LeaseRequest("p", "m"))

    asyncio.run(main())


def test_a_prompt_holds_one_lease_at_a_time_and_policy_still_decides(running):
    async def play(p):
        executor = Bus(running.home, "sandbox/0")

        async def execute(request, body):
            return ExecResult(0)

        executor.serve("sandbox", {"sandbox.exec": execute})

        async def do(request):
            async with lease(request, "q", "n"):
                answers = await asyncio.gather(
                    *[refusal(request, "q", "n") for _ in range(300)], return_exceptions=True
                )
                assert {type(answer) for answer in answers} == {Overloaded}
                assert (await request.call("sandbox.exec", ExecRequest("true"))).exit_code == 0
            async with lease(request, "q", "n"):
                pass

        async with executor:
            await p.ask(do)

    with_workers(running, play)


@pytest.mark.parametrize(
    "report", [b"\xc1", b"\x91" * 9000, encode({"outcome": "won"}), encode({"agent": "x"})]
)
def test_a_report_that_cannot_be_read_is_malformed_and_gives_the_slot_back(running, report):
    async def play(p):
        async def do(request):
            async with lease(request) as stream:
                await stream.send(report)
                with pytest.raises(Malformed, match="report"):
                    await stream.result()
            async with lease(request):
                pass

        await p.ask(do)

    with_workers(running, play)


def test_a_cooldown_reported_by_one_worker_sends_the_others_waiting_calls_away(running):
    async def play(p):
        holding, go = asyncio.Event(), asyncio.Event()
        refused = []

        async def hold(request):
            async with lease(request) as stream:
                holding.set()
                await go.wait()
                await stream.send(encode(LIMITED))
                await stream.end()
                assert 590 < (await stream.result()).cooling_s <= 600

        async def wait(request):
            async with request.open("policy.lease", LeaseRequest("p", "m"), ttl_s=60) as stream:
                async for item in stream:
                    assert item.state == "waiting"
                    go.set()
                refused.append((request.src, await stream.result()))

        first = asyncio.create_task(p.ask(hold))
        await holding.wait()
        await asyncio.gather(first, p.ask(wait))
        ((_, result),) = refused
        assert not result.granted and 590 < result.cooling_s <= 600

        async def again(request):
            result = await refusal(request)
            assert not result.granted and "cooling down after a rate limit" in result.reason
            async with lease(request, "q", "n"):
                pass

        await asyncio.gather(p.ask(again), p.ask(again))

    with_workers(running, play, number=2)
    (entry,) = json.loads((running.home.data / "provider-health.json").read_text())["models"]
    assert (entry["provider"], entry["model"]) == ("p", "m")
    assert time.time() + 500 < entry["coolingUntil"] <= time.time() + 600


def test_garbage_in_the_health_file_is_noticed_and_policy_starts_clean(running):
    running.stop("policy")
    (running.home.data / "provider-health.json").write_text('{"models": [{"prov')
    running.start("policy")

    async def play(p):
        async def do(request):
            async with lease(request):
                pass

        await p.ask(do)

    with_workers(running, play)
    assert "provider-health.json is not readable" in running.log("policy")
