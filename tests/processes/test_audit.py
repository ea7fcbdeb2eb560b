"""The audit process over a real bus: recorded before executed, once, whatever dies."""

import asyncio
import json
import signal

import pytest

from beige import auditlog
from beige.bus import Bus
from beige.errors import BeigeError, Denied, PeerLost, Unavailable
from beige.messages.tools import ToolCall, ToolResult
from beige.testing import House, short_home

CONFIG = """
{ llm: { providers: { demo: { api: "scripted", script: "script.json5" } } },
  plugins: { kv: { path: "bundled:kv" } },
  agents: { travel: { model: { provider: "demo", model: "m" }, tools: ["kv"], sandbox: { image: "i" } } },
  audit: { maxBytes: 65536, sync: "%s" } }
"""


@pytest.fixture(params=["written", "disk"])
def house(request):
    with short_home() as home:
        home.config.write_text(CONFIG % request.param)
        (home.root / "script.json5").write_text("[]")
        with House(home) as house:
            for name in ("broker", "policy", "audit"):
                house.start(name)
            yield house


class Tools:
    """The tools service as one handler that notes what reached it; `bridge` calls it."""

    def __init__(self, home, handler=None):
        self.reached = []
        self.tools, self.bridge = Bus(home, "tools/0"), Bus(home, "bridge/0")

        async def call(request, body):
            self.reached.append(request.call_name)
            request.outcome.exit_code, request.outcome.target = 0, "gateway"
            return await handler(request, body) if handler else ToolResult(True, "OK")

        self.tools.serve("tools", {"tools.call": call}, capacity=256, drain_s=0)

    async def call(self, tool="kv", *args, **options):
        return await self.bridge.call("tools.call", ToolCall(tool, list(args)), agent="travel", **options)

    async def __aenter__(self):
        await self.tools.start()
        await self.bridge.start()
        return self

    async def __aexit__(self, *_):
        await self.bridge.close()
        await self.tools.close()


def records(house):
    return [json.loads(line) for p in auditlog.files(house.home.audit_log) for line in auditlog.lines(p)]


def phases(house):
    return {(r["id"], r["phase"]) for r in records(house)}


def assert_whole_and_once(house):
    """Nothing but whole lines, and none of them twice. Only when nothing is being written."""
    files = auditlog.files(house.home.audit_log)
    assert all(path.read_bytes().endswith(b"\n") for path in files if path.stat().st_size)
    found = [json.loads(line) for path in files for line in path.read_bytes().splitlines()]
    assert len({(r["id"], r["phase"]) for r in found}) == len(found)


def test_a_call_is_recorded_before_it_runs_and_before_its_answer(house):
    async def look(request, body):
        seen.append(phases(house))
        return ToolResult(True, "OK")

    seen = []

    async def work():
        async with Tools(house.home, look) as tools:
            await tools.call("kv", "get", "a")
            (name,) = tools.reached
            assert seen == [{(name, "started")}]
            assert phases(house) == {(name, "started"), (name, "finished")}
            with pytest.raises(Denied):
                await tools.call("git", "push")

    asyncio.run(work())
    started, finished, denied = records(house)
    assert (finished["exitCode"], finished["target"], finished["args"]) == (0, "gateway", ["get", "a"])
    assert finished["durationMs"] > 0
    assert started["src"] == "bridge/0"
    assert denied["error"] == "Permission denied: tool 'git' not allowed for agent 'travel'"


def test_without_audit_nothing_executes(house):
    async def work():
        async with Tools(house.home) as tools:
            house.stop("audit")
            with pytest.raises(Unavailable, match="audit") as caught:
                await tools.call()
            assert caught.value.executed == "no"
            assert tools.reached == []

    asyncio.run(work())
    assert records(house) == []


def test_kill_9_of_audit_loses_no_line_and_writes_none_twice(house):
    """Three times during 400 concurrent calls; each is answered, each is recorded once."""

    async def work():
        async with Tools(house.home) as tools:
            answered = asyncio.Queue()

            async def one(n):
                try:
                    return await tools.call("kv", str(n), "x" * 300)
                finally:
                    answered.put_nowait(n)

            calls = [asyncio.create_task(one(n)) for n in range(400)]
            for _ in range(3):
                for _ in range(80):
                    await answered.get()
                house.kill("audit")
                await asyncio.to_thread(house.start, "audit")
            results = await asyncio.gather(*calls, return_exceptions=True)
            return results, tools.reached

    results, reached = asyncio.run(work())
    assert not [r for r in results if isinstance(r, BaseException) and not isinstance(r, BeigeError)]
    assert all(isinstance(r, ToolResult) for r in results)
    assert len(reached) == len(set(reached)) == 400
    assert_whole_and_once(house)
    assert phases(house) == {(name, phase) for name in reached for phase in ("started", "finished")}
    assert len(auditlog.files(house.home.audit_log)) > 1


def test_calls_the_broker_took_with_it_are_closed(house):
    hanging = asyncio.Event()

    async def hang(request, body):
        hanging.set()
        await asyncio.Event().wait()

    async def work():
        async with Tools(house.home, hang) as tools:
            call = asyncio.create_task(tools.call())
            await hanging.wait()
            house.kill("broker")
            with pytest.raises(PeerLost):
                await call
            house.start("broker")
            while len(records(house)) < 2:
                await asyncio.to_thread(house.home.audit_log.stat)

    asyncio.run(work())
    assert_whole_and_once(house)
    started, closed = records(house)
    assert closed["error"] == "peer_lost: the broker restarted; may have been executed"
    assert (closed["id"], closed["tool"], closed["phase"]) == (started["id"], "kv", "finished")


def test_a_killed_executor_leaves_a_closed_record(house):
    async def vanish(request, body):
        raise asyncio.CancelledError

    async def work():
        async with Tools(house.home, vanish) as tools:
            with pytest.raises(BeigeError):
                await tools.call()

    asyncio.run(work())
    assert [r["phase"] for r in records(house)] == ["started", "finished"]
    assert records(house)[1]["error"]


def test_a_full_disk_stops_execution_until_there_is_room(house):
    """The audit process may write files of 64 KiB at most; then it may again."""
    import resource

    async def work():
        async with Tools(house.home) as tools:
            await tools.call()
            pid = house.processes["audit"].pid
            limit = house.home.audit_log.stat().st_size + 10
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            with pytest.raises(Unavailable, match="audit did not record") as caught:
                await tools.call()
            assert caught.value.executed == "no"
            assert len(tools.reached) == 1
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await tools.call()
            assert len(tools.reached) == 2

    asyncio.run(work())
    assert len(records(house)) == 4
    assert_whole_and_once(house)


def test_a_second_audit_process_refuses_to_start(house):
    with pytest.raises(RuntimeError, match="another process is writing this audit log"):
        house.start("audit/1")
    assert house.processes["audit"].poll() is None


def test_a_log_torn_by_a_power_cut_is_repaired_at_start(house):
    house.processes["audit"].send_signal(signal.SIGKILL)
    house.kill("audit")
    with house.home.audit_log.open("ab") as log:
        log.write(b'{"ts":"2026')
    house.start("audit")

    async def work():
        async with Tools(house.home) as tools:
            await tools.call()

    asyncio.run(work())
    assert [r["phase"] for r in records(house)] == ["started", "finished"]
    (aside,) = house.home.logs.glob("audit.torn-*")
    assert aside.read_bytes() == b'{"ts":"2026'
