"""Where an agent may connect to, what a denial says, and learning, which ends with its call."""

import asyncio
import logging

import pytest

from beige.destinations import parse_rule
from beige.errors import Malformed, NotFound, Overloaded
from beige.messages import encode
from beige.messages.egress import ConnectRequest
from beige.messages.policy import LearnRequest
from beige.seals import read_verdict, request_digest
from beige.wire import Header
from services.policy.core import Grants
from services.policy.egress import MAX_LEARNED, Doors
from services.policy.service import reply

KEY = b"k" * 32
RULES = {"travel": ("api.example", "*.pypi.example:8443"), "other": ()}


def doors(rules=RULES):
    parsed = {agent: tuple(map(parse_rule, texts)) for agent, texts in rules.items()}
    return Doors(parsed, logging.getLogger("policy"))


def asked(host, port=443, **fields):
    return encode(ConnectRequest(host, port, **fields))


@pytest.mark.parametrize(
    ("agent", "host", "port", "rule"),
    [
        ("travel", "api.example", 443, "api.example"),
        ("travel", "api.example", 80, "api.example"),
        ("travel", "files.pypi.example", 8443, "*.pypi.example:8443"),
        ("travel", "api.example", 22, ""),
        ("travel", "pypi.example", 8443, ""),
        ("other", "api.example", 443, ""),
        ("unknown", "api.example", 443, ""),
    ],
)
def test_only_what_a_rule_of_the_agent_covers_is_allowed(agent, host, port, rule):
    decision = doors().decide(agent, asked(host, port))
    assert decision.allowed == bool(rule)
    if rule:
        assert decision.reason == rule


def test_a_denial_names_the_rule_to_add_also_for_the_longest_host():
    host = ".".join(["a" * 60] * 4)
    body = asked(host, 8443)
    header = Header(service="egress", method="connect", agent="other", call="1-1")
    answer = reply(Grants(), doors(), KEY, header, body)
    assert answer.denied.endswith(f'add agents.other.sandbox.egress.allow: "{host}:8443"')
    verdict = read_verdict(KEY, request_digest(header, body), answer.verdict)
    assert (verdict.allowed, verdict.reason) == (False, answer.denied)


def test_an_allowed_call_is_not_answered_as_denied_though_its_verdict_has_a_reason():
    header = Header(service="egress", method="connect", agent="travel", call="1-1")
    answer = reply(Grants(), doors(), KEY, header, asked("api.example"))
    assert answer.denied == ""
    assert read_verdict(KEY, request_digest(header, asked("api.example")), answer.verdict).allowed


def test_an_agent_without_egress_is_told_what_is_missing():
    assert "has no egress" in doors().decide("idle", asked("api.example")).reason


@pytest.mark.parametrize("host", ["API.example", "api.example.", "0x7f.1", "a/b", ""])
def test_a_host_in_another_form_is_no_request(host):
    with pytest.raises(Malformed):
        doors({"travel": ("*",)}).decide("travel", asked(host))


class Operator:
    """The call of a learner; `end` is its END."""

    def __init__(self, agent="other"):
        self.agent, self.src = agent, "cli/0"
        self.told = []
        self._end = asyncio.Event()

    async def send(self, item):
        self.told.append((item.destination, item.listed))

    async def items(self):
        await self._end.wait()
        for nothing in ():
            yield nothing

    def end(self):
        self._end.set()


async def begun(all_doors, operator, duration_s=60.0):
    task = asyncio.create_task(all_doors.learn(operator, LearnRequest(duration_s)))
    await asyncio.sleep(0)
    return task


def test_while_learning_everything_is_allowed_to_that_agent_and_told_once(caplog):
    async def main():
        all_doors, operator = doors({"other": ("api.example",), "travel": ()}), Operator()
        task = await begun(all_doors, operator)
        for host in ("api.example", "b.example", "b.example"):
            assert all_doors.decide("other", asked(host)).allowed
        assert all_doors.decide("other", asked("b.example")).reason == "learning"
        assert not all_doors.decide("travel", asked("b.example")).allowed
        operator.end()
        result = await task
        assert operator.told == [("api.example:443", True), ("b.example:443", False)]
        assert (result.allow, result.connections) == (["api.example:443", "b.example:443"], 4)
        assert not all_doors.decide("other", asked("b.example")).allowed

    with caplog.at_level(logging.WARNING, "policy"):
        asyncio.run(main())
    assert ["LEARNING" in caplog.messages[0], "has ended" in caplog.messages[-1]] == [True, True]


def test_learning_ends_when_its_time_is_over_and_when_its_caller_is_gone():
    async def main():
        all_doors = doors()
        assert (await all_doors.learn(Operator(), LearnRequest(0.001))).allow == []
        task = await begun(all_doors, Operator())
        assert all_doors.decide("other", asked("b.example")).allowed
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not all_doors.decide("other", asked("b.example")).allowed

    asyncio.run(main())


def test_one_learner_at_a_time_and_only_for_agents_with_egress():
    async def main():
        all_doors, operator = doors(), Operator()
        task = await begun(all_doors, operator)
        with pytest.raises(Overloaded):
            await all_doors.learn(Operator(), LearnRequest())
        with pytest.raises(NotFound, match=r"agents.idle.sandbox.egress.allow"):
            await all_doors.learn(Operator("idle"), LearnRequest())
        operator.end()
        await task

    asyncio.run(main())


def test_a_learner_that_has_seen_too_much_lets_nothing_new_through():
    async def main():
        all_doors, operator = doors(), Operator()
        task = await begun(all_doors, operator)
        for n in range(MAX_LEARNED):
            assert all_doors.decide("other", asked(f"h{n}.example")).allowed
        assert not all_doors.decide("other", asked("one-more.example")).allowed
        assert all_doors.decide("other", asked("h0.example")).allowed
        operator.end()
        await task

    asyncio.run(main())
