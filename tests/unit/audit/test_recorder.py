"""The hops at audit: recorded before acknowledged, once, and only what policy decided."""

import asyncio
import json
import logging

import pytest

from beige import auditlog
from beige.bus import HopReply
from beige.errors import Denied, Malformed, Unavailable
from beige.messages import encode
from beige.messages.sandbox import ExecRequest
from beige.messages.tools import ToolCall
from beige.seals import check_receipt, request_digest, sign_verdict
from beige.wire import Header, Outcome
from services.audit.journal import Journal
from services.audit.ledger import Ledger, rebuild
from services.audit.recorder import BROKER_GONE, Recorder

VERDICT, RECEIPT = b"v" * 32, b"r" * 32


class House:
    """A recorder over a real file, and the disk that may refuse."""

    def __init__(self, path, ledger=None, sync="written"):
        self.path, self.sync = path, sync
        self.journal = Journal(path, max_bytes=1 << 30, sync=sync)
        self.full = False
        self.recorder = Recorder(
            self, ledger or Ledger(), verdict_key=VERDICT, receipt_key=RECEIPT,
            log=logging.getLogger("test"),
        )  # fmt: skip

    def append(self, line):
        if not self.full:
            return self.journal.append(line)
        if self.sync == "written":
            raise OSError(28, "No space left on device")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_soon(future.set_exception, OSError(28, "No space left on device"))
        return future

    async def started(self, header, body):
        return (await self.answer(self.recorder.started(header, body))).receipt

    async def finished(self, header):
        await self.answer(self.recorder.finished(header))

    async def answer(self, reply):
        assert isinstance(reply, HopReply) or self.sync == "disk"
        return reply if isinstance(reply, HopReply) else await reply

    def lines(self):
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def phases(self):
        return [(line["id"], line["phase"]) for line in self.lines()]


@pytest.fixture(params=["written", "disk"])
def run(request, tmp_path):
    def runner(work, ledger=None):
        async def body():
            house = House(tmp_path / "audit.jsonl", ledger, request.param)
            try:
                await work(house)
            finally:
                await house.journal.close()

        asyncio.run(body())

    return runner


def call(number=1, body=None, *, epoch=1, allowed=True, reason="", key=VERDICT, tool="kv"):
    body = encode(ToolCall(tool, ["get", "a"])) if body is None else body
    header = Header(
        service="tools", method="call", agent="travel", src="bridge/0", call=f"{epoch:08x}-{number}"
    )
    header.verdict = sign_verdict(key, request_digest(header, body), allowed, reason)
    return header, body


def done(header, **outcome):
    return Header(
        service=header.service, method=header.method, agent=header.agent, src=header.src, call=header.call,
        outcome=Outcome(**outcome),
    )  # fmt: skip


def test_started_is_recorded_before_the_receipt_and_finished_before_the_answer(run):
    async def work(house):
        header, body = call()
        receipt = await house.started(header, body)
        assert house.phases() == [(header.call, "started")]
        check_receipt(RECEIPT, request_digest(header, body), header.verdict, receipt)
        await house.finished(done(header, exit_code=0, output_bytes=2, duration_ms=1.5))
        started, finished = house.lines()
        assert finished["phase"] == "finished"
        assert {k: finished[k] for k in ("id", "agent", "tool", "args", "src")} == {
            k: started[k] for k in ("id", "agent", "tool", "args", "src")
        }
        assert (finished["durationMs"], finished["exitCode"], finished["outputBytes"]) == (1.5, 0, 2)

    run(work)


def test_a_denial_is_recorded_once_and_earns_no_receipt(run):
    async def work(house):
        header, body = call(allowed=False, reason="Permission denied: no")
        assert await house.started(header, body) == b""
        assert await house.started(header, body) == b""
        (line,) = house.lines()
        assert (line["phase"], line["decision"], line["error"]) == (
            "finished", "denied", "Permission denied: no",
        )  # fmt: skip

    run(work)


@pytest.mark.parametrize("seal", [b"", b"\xc1", "other key", "other body", "other agent"])
def test_a_forged_verdict_is_not_recorded_as_allowed(run, seal):
    async def work(house):
        header, body = call()
        if seal == "other key":
            header, body = call(key=b"x" * 32)
        elif seal == "other body":
            body = encode(ToolCall("git", []))
        elif seal == "other agent":
            header.agent = "other"
        else:
            header.verdict = seal
        with pytest.raises(Denied):
            await house.started(header, body)
        assert house.lines() == []

    run(work)


def test_hops_dispatched_again_are_acknowledged_but_not_written_again(run):
    async def work(house):
        header, body = call()
        first, second = await asyncio.gather(*(house.started(header, body) for _ in range(2)))
        assert first == second == await house.started(header, body)
        await asyncio.gather(*(house.finished(done(header)) for _ in range(3)))
        await house.finished(done(header))
        assert house.phases() == [(header.call, "started"), (header.call, "finished")]

    run(work)


def test_nothing_is_written_twice_across_the_death_of_audit(run, tmp_path):
    header, body = call(1)
    other, other_body = call(2)
    no, no_body = call(3, allowed=False, reason="no")
    receipts = []

    async def first_life(house):
        receipts.append(await house.started(header, body))
        await house.started(other, other_body)
        await house.finished(done(other))
        await house.started(no, no_body)

    async def second_life(house):
        receipts.append(await house.started(header, body))
        await house.finished(done(other))
        await house.started(no, no_body)
        await house.finished(done(header, exit_code=3))
        with pytest.raises(Denied, match="another request"):
            await house.started(*call(4))
            await house.started(*call(4, encode(ToolCall("kv", ["del"]))))

    run(first_life)
    path = tmp_path / "audit.jsonl"
    run(second_life, rebuild(auditlog.records_backwards(path, 1 << 20), 0.0))
    assert receipts[0] == receipts[1]
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [(line["id"][-1], line["phase"]) for line in lines] == [
        ("1", "started"), ("2", "started"), ("2", "finished"), ("3", "finished"), ("1", "finished"),
        ("4", "started"),
    ]  # fmt: skip
    assert lines[4]["args"] == ["get", "a"]
    assert lines[4]["durationMs"] > 0


def test_the_end_of_an_unknown_call_is_recorded_as_far_as_known(run):
    async def work(house):
        header, _ = call()
        await house.finished(done(header, error="cancelled: gone"))
        (line,) = house.lines()
        assert (line["tool"], line["agent"], line["error"]) == ("unknown", "travel", "cancelled: gone")

    run(work)


def test_calls_of_a_broker_that_is_gone_are_closed(run):
    async def work(house):
        for number, epoch in [(1, 7), (2, 7), (1, 8)]:
            await house.started(*call(number, epoch=epoch))
        house.recorder.close_other_epochs(8)
        house.recorder.close_other_epochs(8)
        await house.finished(done(call(1, epoch=7)[0]))
        closed = [line for line in house.lines() if line["phase"] == "finished"]
        assert [line["id"] for line in closed] == ["00000007-1", "00000007-2"]
        assert {line["error"] for line in closed} == {BROKER_GONE}

    run(work)


def test_a_full_disk_stops_the_call_and_the_name_stays_free(run):
    async def work(house):
        header, body = call()
        house.full = True
        with pytest.raises(Unavailable, match="No space left on device"):
            await house.started(header, body)
        no, no_body = call(2, allowed=False, reason="no")
        with pytest.raises(Unavailable):
            await house.started(no, no_body)
        house.full = False
        await house.started(header, body)
        await house.started(no, no_body)
        assert house.phases() == [(header.call, "started"), (no.call, "finished")]

    run(work)


def test_an_end_the_disk_refused_is_written_when_it_takes_it(run):
    async def work(house):
        header, body = call()
        await house.started(header, body)
        house.full = True
        with pytest.raises(Unavailable):
            await house.finished(done(header, exit_code=5))
        house.recorder.retry()
        with pytest.raises(Unavailable):
            await house.finished(done(header))
        house.full = False
        house.recorder.retry()
        await house.finished(done(header, exit_code=6))
        house.recorder.retry()
        await house.started(*call(2))
        assert [line.get("exitCode") for line in house.lines()] == [None, 5, None]

    run(work)


def test_a_cancelled_hop_leaves_its_record_and_no_second_one(run):
    async def work(house):
        header, body = call()
        hop = asyncio.create_task(house.started(header, body))
        await asyncio.sleep(0)
        hop.cancel()
        await asyncio.wait([hop])
        assert hop.cancelled() == (house.sync == "disk")
        await house.finished(done(header, error="cancelled: the caller cancelled"))
        assert house.phases() == [(header.call, "started"), (header.call, "finished")]

    run(work)


def test_a_body_that_cannot_be_read_is_malformed_and_leaves_no_trace(run):
    async def work(house):
        header, body = call(body=b"\xc1")
        with pytest.raises(Malformed):
            await house.started(header, body)
        assert house.lines() == []
        core = Header(service="sandbox", method="exec", agent="travel", call="00000001-9")
        good = encode(ExecRequest("true"))
        core.verdict = sign_verdict(VERDICT, request_digest(core, good), True)
        assert await house.started(core, good)

    run(work)
