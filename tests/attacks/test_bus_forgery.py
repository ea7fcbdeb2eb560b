"""Threat: an llm worker in hostile hands (it holds the llm secret and parses what models say).

It forges verdict, receipt, src, agent or a parent, or answers another worker's call: it gets
nowhere. Policy and audit are the real processes; the executor is a `Bus` that notes what it ran.
"""

import asyncio
import json

import pytest

from beige import wire
from beige.bus import Bus
from beige.errors import Denied
from beige.keys import read_secret
from beige.messages import encode as encode_body
from beige.messages.llm import PromptRequest, PromptResult
from beige.messages.sandbox import ExecRequest, ExecResult
from beige.testing import RawPeer
from beige.wire import Header

EXEC = encode_body(ExecRequest(command="steal"))


class Executor:
    """Serves `sandbox` honestly and notes every command it ran."""

    def __init__(self, home):
        self.ran = []
        self.bus = Bus(home, "sandbox/0")
        self.bus.serve("sandbox", {"sandbox.exec": self._exec})

    async def _exec(self, request, body):
        self.ran.append((request.agent, body.command))
        return ExecResult(exit_code=0)


@pytest.fixture
def corridor(house):
    for name in ("broker", "policy", "audit"):
        house.start(name)
    return house


def audit_lines(home):
    return (
        [json.loads(line) for line in home.audit_log.read_text().splitlines()]
        if home.audit_log.exists()
        else []
    )


def in_house(home, play):
    """Run `play(executor, operator)` with an honest executor and an operator's bus."""

    async def main():
        executor, operator = Executor(home), Bus(home, "cli/0")
        await executor.bus.start()
        await operator.start()
        try:
            await play(executor, operator)
        finally:
            await operator.close()
            await executor.bus.close()

    asyncio.run(main())


def hostile(home, user="llm/0"):
    peer = RawPeer(home.bus_endpoint, user, read_secret(home, user))
    assert peer.admitted
    return peer


def test_an_operators_call_executes_and_is_recorded_control(corridor):
    async def play(executor, operator):
        await operator.call("sandbox.exec", ExecRequest(command="true"), agent="travel")
        assert executor.ran == [("travel", "true")]

    in_house(corridor.home, play)
    assert [r["phase"] for r in audit_lines(corridor.home)] == ["started", "finished"]


FORGERIES = {
    "verdict": {"verdict": b"\x93\xc3\xa0\xc4\x20" + b"v" * 32},
    "receipt": {"receipt": b"r" * 32},
    "both seals at the executor's hop": {"verdict": b"v", "receipt": b"r", "hop": wire.EXECUTE},
    "src": {"src": "cli/0"},
    "call": {"call": "00000001-1"},
    "parent_call": {"parent_call": "00000001-1"},
    "agent": {"agent": "travel"},
    "agent and session": {"agent": "travel", "session": "s1", "channel": "cli"},
    "a parent it is not serving": {"parent": 1},
    "a call token": {"token": "t" * 32},
    "nothing at all": {},
}


@pytest.mark.parametrize("fields", FORGERIES.values(), ids=FORGERIES.keys())
def test_forged_fields_get_nowhere(corridor, fields):
    async def play(executor, operator):
        with hostile(corridor.home) as peer:
            peer.hello("llm", 4)
            peer.send(Header(type=wire.CALL, id=1, service="sandbox", method="exec", **fields), EXEC)
            answer, _ = await asyncio.to_thread(peer.receive)
            assert (answer.type, answer.code) == (wire.ERR, "denied")
        await operator.call("sandbox.exec", ExecRequest(command="true"), agent="travel")
        assert executor.ran == [("travel", "true")]

    in_house(corridor.home, play)
    assert {r["args"][0] for r in audit_lines(corridor.home)} == {"true"}


def test_an_llm_worker_acts_only_for_the_agent_whose_prompt_it_serves(corridor):
    """The worker serves a prompt for travel: its child call runs as travel, whatever it claims."""

    async def play(executor, operator):
        with hostile(corridor.home) as peer:
            peer.hello("llm", 4)
            prompt = asyncio.ensure_future(
                operator.call(
                    "llm.prompt", PromptRequest(text="hi"), agent="travel", session="s1", channel="c"
                )
            )
            serving, _ = await asyncio.to_thread(peer.receive)
            claim = Header(
                type=wire.CALL, id=1, service="sandbox", method="exec", parent=serving.id, agent="idle"
            )
            peer.send(claim, EXEC)
            assert (await asyncio.to_thread(peer.receive))[0].code == "denied"
            claim.id, claim.agent = 2, ""
            peer.send(claim, EXEC)
            assert (await asyncio.to_thread(peer.receive))[0].type == wire.REPLY
            peer.send(
                Header(type=wire.REPLY, id=serving.id),
                encode_body(PromptResult(session="s1", text="", stop_reason="end", model="m")),
            )
            await prompt
            claim.id = 3
            peer.send(claim, EXEC)
            assert (await asyncio.to_thread(peer.receive))[0].code == "denied", "the prompt is answered"
        assert executor.ran == [("travel", "steal")]

    in_house(corridor.home, play)
    assert {(r["agent"], r["session"], r["channel"]) for r in audit_lines(corridor.home)} == {
        ("travel", "s1", "c")
    }


def test_a_worker_cannot_answer_another_workers_call(corridor):
    async def play(executor, operator):
        with hostile(corridor.home, "llm/0") as honest, hostile(corridor.home, "llm/1") as thief:
            honest.hello("llm", 4)
            thief.hello("", 0)
            prompt = asyncio.ensure_future(
                operator.call("llm.prompt", PromptRequest(text="hi"), agent="travel")
            )
            serving, _ = await asyncio.to_thread(honest.receive)
            stolen = PromptResult(session="", text="stolen", stop_reason="end", model="m")
            for guess in range(max(1, serving.id - 3), serving.id + 4):
                thief.send(Header(type=wire.REPLY, id=guess), encode_body(stolen))
                thief.send(Header(type=wire.ITEM, id=guess), b"stolen")
                thief.send(Header(type=wire.CANCEL, id=guess))
            thief.send(Header(type=wire.CALL, id=99, service="bus", method="stats"), b"\x80")
            await asyncio.to_thread(thief.receive)  # the denial comes after everything before it
            honest.send(
                Header(type=wire.REPLY, id=serving.id),
                encode_body(PromptResult(session="", text="honest", stop_reason="end", model="m")),
            )
            assert (await prompt).text == "honest"

    in_house(corridor.home, play)


@pytest.mark.parametrize("service", ["policy", "audit", "sandbox", "tools", "bus", "broker"])
def test_a_worker_cannot_announce_another_service(corridor, service):
    with hostile(corridor.home) as peer:
        peer.send(Header(type=wire.HELLO, service=service, credit=1000))
        answer, _ = peer.receive()
        assert (answer.type, answer.code) == (wire.ERR, "denied")


def test_an_executor_refuses_what_a_hostile_broker_made_up(corridor):
    """The executor's own check: seals that were not made by policy and audit for this request."""
    from beige.bus.serving import Request, Server
    from beige.keys import read_seal_key

    async def play(executor, operator):
        keys = (read_seal_key(corridor.home, "verdict"), read_seal_key(corridor.home, "receipt"))
        server = Server(executor.bus, "sandbox", {"sandbox.exec": executor._exec}, {}, 1, keys)
        for header in (
            Header(service="sandbox", method="exec", hop=wire.DIRECT, agent="travel", call="x-1"),
            Header(service="sandbox", method="exec", hop=wire.EXECUTE, agent="travel", call="x-1"),
            Header(service="sandbox", method="exec", hop=wire.EXECUTE, agent="travel", call="x-1",
                   verdict=b"\x93\xc3\xa0\xc4\x20" + b"v" * 32, receipt=b"r" * 32),
        ):  # fmt: skip
            with pytest.raises(Denied):
                await server._handle(Request(executor.bus, header, EXEC))
        assert executor.ran == []

    in_house(corridor.home, play)


def test_a_replayed_call_runs_once(corridor):
    """A broker in hostile hands sends an admitted call a second time: the seals are right, the call
    is known, it is refused."""
    from beige.bus.serving import Request, Server
    from beige.keys import read_seal_key
    from beige.seals import request_digest, sign_receipt, sign_verdict

    async def play(executor, operator):
        verdict_key, receipt_key = (read_seal_key(corridor.home, n) for n in ("verdict", "receipt"))
        server = Server(
            executor.bus, "sandbox", {"sandbox.exec": executor._exec}, {}, 1, (verdict_key, receipt_key)
        )
        header = Header(service="sandbox", method="exec", hop=wire.EXECUTE, agent="travel", call="x-1")
        digest = request_digest(header, EXEC)
        header.verdict = sign_verdict(verdict_key, digest, True)
        header.receipt = sign_receipt(receipt_key, digest, header.verdict)
        await server._handle(Request(executor.bus, header, EXEC))
        with pytest.raises(Denied, match="already"):
            await server._handle(Request(executor.bus, header, EXEC))
        header.idem = "again"  # would permit a second execution, if the broker could add it
        with pytest.raises(Denied, match="verdict is not policy's"):
            await server._handle(Request(executor.bus, header, EXEC))
        assert len(executor.ran) == 1

    in_house(corridor.home, play)
