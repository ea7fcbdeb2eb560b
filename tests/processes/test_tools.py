"""The tools process in its house: governed calls reach plugins, and one bad plugin harms no other."""

from __future__ import annotations

import asyncio
import json
import os
import select
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from beige.bus import Bus
from beige.errors import BeigeError, Denied, Failed
from beige.messages.tools import ToolCall, ToolResult
from beige.testing import House, short_home

CONFIG = """
{ llm: { providers: { demo: { api: "scripted", script: "script.json5" } } },
  plugins: {
    kv: { path: "bundled:kv" },
    odd: { path: "plugins/odd", config: { token: "${ODD_TOKEN}", list: [1, 2], deep: { a: 1, b: 2 } } },
    broken: { path: "plugins/broken" },
  },
  agents: {
    travel: { model: { provider: "demo", model: "m" }, tools: ["kv", "odd", "broken"],
              sandbox: { image: "i" }, pluginConfigs: { odd: { list: [3], deep: { b: 9 } } } },
    other: { model: { provider: "demo", model: "m" }, tools: ["kv", "odd"], sandbox: { image: "i" } },
  } }
"""
ODD = """
import json, os, sys, time
class Odd:
    def register(self, reg): reg.tool("odd", self.call)
    def call(self, call):
        if call.args[0] == "config": return json.dumps(call.config)
        if call.args[0] == "pid": return str(os.getpid())
        if call.args[0] == "raise": raise RuntimeError("/home/op/secret")
        if call.args[0] == "exit": os._exit(1)
        if call.args[0] == "hang": time.sleep(1000)
        if call.args[0] == "print": print("READY"); sys.stdout.flush(); return "printed"
        if call.args[0] == "huge": return "\\0" * 50_000_000
def create_plugin(config, ctx): return Odd()
"""


@pytest.fixture
def house() -> Iterator[House]:
    with short_home() as home:
        home.config.write_text(CONFIG)
        (home.root / "script.json5").write_text("[]")
        for name, source in (("odd", ODD), ("broken", "raise RuntimeError('/home/op/secret')")):
            directory = home.root / "plugins" / name
            directory.mkdir(parents=True)
            manifest = {"name": name, "description": "for tests", "provides": {"tools": [name]}}
            (directory / "plugin.json").write_text(json.dumps(manifest))
            (directory / "plugin.py").write_text(source)
        with House(home, {"ODD_TOKEN": "opensesame"}) as house:
            for name in ("broker", "policy", "audit", "tools"):
                house.start(name)
            yield house


Call = Callable[..., Coroutine[Any, Any, ToolResult]]


def with_bridge(house: House, work: Callable[[Call], Awaitable[None]]) -> None:
    """`work` gets a function that calls a tool as the bridge would."""

    async def main() -> None:
        async with Bus(house.home, "bridge/0") as bus:

            async def call(*words: str, agent: str = "travel", ttl_s: float = 30.0) -> ToolResult:
                tool, *args = words
                result = await bus.call("tools.call", ToolCall(tool, args), agent=agent, ttl_s=ttl_s)
                assert isinstance(result, ToolResult)
                return result

            await work(call)

    asyncio.run(main())


def audit(house: House) -> list[dict[str, Any]]:
    return [json.loads(line) for line in house.home.audit_log.read_text().splitlines()]


def test_a_tool_call_is_executed_and_its_outcome_recorded(house: House) -> None:
    async def work(call: Call) -> None:
        assert await call("kv", "set", "trip", "Zürich") == ToolResult(True, "OK", "", 0)
        assert await call("kv", "get", "trip") == ToolResult(True, "Zürich", "", 0)
        assert await call("kv", "get", "trip", agent="other") == ToolResult(
            False, "", "kv: no such key: 'trip'", 1
        )
        assert (await call("kv", "frob")).exit_code == 2

    with_bridge(house, work)
    finished = [line for line in audit(house) if line["phase"] == "finished"]
    assert [(line["agent"], line["exitCode"], line["target"]) for line in finished] == [
        ("travel", 0, "gateway"),
        ("travel", 0, "gateway"),
        ("other", 1, "gateway"),
        ("travel", 2, "gateway"),
    ]
    assert [line["outputBytes"] for line in finished][:3] == [2, 7, len("kv: no such key: 'trip'")]


def test_each_agent_has_its_own_merged_configuration(house: House) -> None:
    async def work(call: Call) -> None:
        mine = json.loads((await call("odd", "config")).output)
        others = json.loads((await call("odd", "config", agent="other")).output)
        assert mine == {"token": "opensesame", "list": [3], "deep": {"a": 1, "b": 9}}
        assert others == {"token": "opensesame", "list": [1, 2], "deep": {"a": 1, "b": 2}}

    with_bridge(house, work)


def test_a_plugin_that_does_not_load_is_reported_and_the_others_live(house: House) -> None:
    async def work(call: Call) -> None:
        with pytest.raises(Failed) as caught:
            await call("broken")
        assert str(caught.value) == "plugin 'broken' is not loaded: importing it raised RuntimeError"
        with pytest.raises(Denied):
            await call("broken", agent="other")
        assert (await call("kv", "list")).success

    with_bridge(house, work)
    assert "plugin is not loaded: importing it raised RuntimeError" in house.log("tools")
    assert "/home/op/secret" in house.log("tools")


def test_a_plugin_that_misbehaves_gives_clean_errors_and_harms_no_other(house: House) -> None:
    async def work(call: Call) -> None:
        raised = await call("odd", "raise")
        assert (raised.success, raised.exit_code) == (False, 1)
        assert "/home/op" not in raised.error
        assert (await call("odd", "print")).output == "printed"
        huge = await call("odd", "huge")
        assert huge.output.endswith("of 50000000 characters shown]\n")
        with pytest.raises(Failed, match="process ended"):
            await call("odd", "exit")
        assert (await call("kv", "set", "k", "v")).success
        assert (await call("odd", "pid")).success

    with_bridge(house, work)
    assert '"msg": "READY"' in house.log("tools")


def test_a_hanging_plugin_ends_at_the_deadline_and_others_answer_meanwhile(house: House) -> None:
    async def work(call: Call) -> None:
        hanging = [asyncio.create_task(call("odd", "hang", ttl_s=1.0)) for _ in range(30)]
        for _ in range(10):
            assert (await call("kv", "list")).success
        for done in await asyncio.gather(*hanging, return_exceptions=True):
            assert isinstance(done, BeigeError)
            assert done.code == "deadline_exceeded"
        assert (await call("odd", "pid")).success

    with_bridge(house, work)


def test_the_end_of_the_process_leaves_no_plugin_behind(house: House) -> None:
    pids: list[int] = []

    async def work(call: Call) -> None:
        pids.append(int((await call("odd", "pid")).output))

    for end in (lambda: house.stop("tools"), lambda: house.kill("tools")):
        with_bridge(house, work)
        end()
        gone(pids[-1])
        house.start("tools")
    assert house.stop("tools") == 0


def gone(pid: int) -> None:
    """Waits until the kernel has ended process `pid`: it signals a death to its children itself."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 10)[0], f"process {pid} lives"
    finally:
        os.close(handle)


def test_two_tools_processes_share_the_plugins_data(house: House) -> None:
    house.start("tools/1")

    async def work(call: Call) -> None:
        await asyncio.gather(*(call("kv", "set", f"k{n}", str(n)) for n in range(40)))
        values = await asyncio.gather(*(call("kv", "get", f"k{n}") for n in range(40)))
        assert [value.output for value in values] == [str(n) for n in range(40)]
        answers = await asyncio.gather(*(call("odd", "pid") for _ in range(40)))
        assert len({answer.output for answer in answers}) == 2

    with_bridge(house, work)


def test_no_secret_is_in_a_plugins_environment_or_arguments(house: House) -> None:
    pids: list[str] = []

    async def work(call: Call) -> None:
        pids.append((await call("odd", "pid")).output)

    with_bridge(house, work)
    for file in ("environ", "cmdline"):
        assert b"opensesame" not in Path(f"/proc/{pids[0]}/{file}").read_bytes()
