"""A plugin in its own real process: it may raise, hang, die, print and lie, and harms nobody else."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from beige.errors import BeigeError, Failed, Overloaded
from beige.pluginhost.child import plugin_environment
from beige.pluginhost.frames import MAX_TO_PLUGIN
from beige.plugins import Provides
from services.tools import frames, plugin_process
from services.tools.plugin_process import PluginProcess

MENAGERIE = """
import asyncio, os, sys, threading, time
from beige.plugins import ToolOutput, UsageError

class Plugin:
    def __init__(self, config, ctx):
        self.config, self.ctx = config, ctx

    def register(self, reg):
        reg.tool("zoo", self.plain, timeout_s=20)
        reg.tool("zoo-async", self.coroutine, timeout_s=20)
        reg.tool("zoo-quick", self.plain, timeout_s=0.3)

    def plain(self, call):
        what, *rest = call.args
        if what == "pid": return str(os.getpid())
        if what == "echo": return ToolOutput(" ".join(rest), "", 0)
        if what == "who": return f"{call.agent} {call.session} {call.channel} {call.cwd} {call.config}"
        if what == "env": return "\\n".join(f"{k}={v}" for k, v in os.environ.items())
        if what == "cmdline": return open("/proc/self/cmdline").read()
        if what == "raise": raise RuntimeError("secret at /home/op")
        if what == "stop": raise StopIteration(5)
        if what == "usage": raise UsageError("usage: zoo")
        if what == "exit": os._exit(7)
        if what == "sysexit": sys.exit(3)
        if what == "segv": import ctypes; ctypes.string_at(0)
        if what == "print": print(rest[0]); print(rest[0], file=sys.stderr); return "done"
        if what == "flood":
            for _ in range(50_000): print("x" * 100)
            return "done"
        if what == "log": self.ctx.log.warning("careful %s", rest[0]); return "done"
        if what == "huge": return "x" * 100_000_000
        if what == "garbage": return {"a": {1, 2}}
        if what == "surrogate": return "a\\ud800"
        if what == "hang": time.sleep(1000)
        if what == "coroutine": return self.coroutine(call)
        if what == "rogue": os.write(int(rest[0]), b"\\xff" * 64)
        return None

    async def coroutine(self, call):
        what = call.args[0]
        if what == "hang": await asyncio.sleep(1000)
        if what == "block":
            (self.ctx.data_dir / "blocked").touch()
            time.sleep(1000)
        if what == "cancelled": raise asyncio.CancelledError()
        if what == "stubborn":
            while True:
                try: await asyncio.sleep(1000)
                except asyncio.CancelledError: pass
        if what == "sleep": await asyncio.sleep(float(call.args[1]))
        return "async"

    def close(self):
        (self.ctx.data_dir / "closed").write_text("yes")

def create_plugin(config, ctx):
    if config.get("raise"): raise RuntimeError("secret at /home/op")
    if config.get("exit"): os._exit(9)
    return Plugin(config, ctx)
"""
DETAILS = "the gateway's log has the details"
PROVIDES = Provides(tools=("zoo", "zoo-async", "zoo-quick"))


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def text(self) -> str:
        return "\n".join(f"{r.levelname} {r.getMessage()}" for r in self.records)


class Zoo:
    """One started plugin and what it logged."""

    def __init__(self, directory: Path, config: dict[str, Any] | None = None) -> None:
        self.data = directory / "data"
        self.data.mkdir(exist_ok=True)
        (directory / "plugin.py").write_text(MENAGERIE)
        log = logging.Logger("zoo", logging.DEBUG)
        self.records = Records()
        log.addHandler(self.records)
        overrides = {"special": {"mine": True}}
        load = frames.Load("zoo", str(directory), str(self.data), PROVIDES, config or {}, overrides)
        self.plugin = PluginProcess(load, log)

    async def call(self, *args: str, tool: str = "zoo", agent: str = "a") -> frames.Done:
        return await self.plugin.call(tool, list(args), agent=agent, session="s", channel="c", cwd="/w")

    async def output(self, *args: str, tool: str = "zoo", agent: str = "a") -> str:
        done = await self.call(*args, tool=tool, agent=agent)
        assert (done.error, done.exit_code) == ("", 0)
        return done.output


def with_zoo(directory: Path, test: Callable[[Zoo], Awaitable[None]], config: Any = None) -> Zoo:
    async def main() -> None:
        await zoo.plugin.start()
        try:
            async with asyncio.timeout(60):
                await test(zoo)
        finally:
            await zoo.plugin.close()

    zoo = Zoo(directory, config)
    uvloop.run(main())
    return zoo


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what a log or another process does by itself; the test's time limit ends it."""
    while not condition():
        await asyncio.sleep(0.005)


def test_a_call_knows_its_caller_and_that_agents_config(tmp_path: Path) -> None:
    async def test(zoo: Zoo) -> None:
        assert await zoo.output("who") == "a s c /w {'k': 1}"
        assert await zoo.output("who", agent="special") == "special s c /w {'mine': True}"

    with_zoo(tmp_path, test, {"k": 1})


def test_the_plugin_is_closed_and_its_process_gone(tmp_path: Path) -> None:
    pids: list[int] = []

    async def test(zoo: Zoo) -> None:
        pids.append(int(await zoo.output("pid")))

    zoo = with_zoo(tmp_path, test)
    assert (zoo.data / "closed").read_text() == "yes"
    assert not Path(f"/proc/{pids[0]}").exists()
    assert "ERROR" not in zoo.records.text()


@pytest.mark.parametrize(
    ("what", "tool", "error", "exit_code"),
    [
        ("raise", "zoo", f"plugin 'zoo' failed (RuntimeError); {DETAILS}", 1),
        ("stop", "zoo", f"plugin 'zoo' failed (RuntimeError); {DETAILS}", 1),
        ("sysexit", "zoo", f"plugin 'zoo' failed (SystemExit); {DETAILS}", 1),
        ("cancelled", "zoo-async", f"plugin 'zoo' failed (CancelledError); {DETAILS}", 1),
        ("garbage", "zoo", "plugin 'zoo' returned a dict instead of text", 1),
        ("usage", "zoo", "usage: zoo", 2),
        ("hang", "zoo-quick", "tool 'zoo-quick' was ended after 0.3 s", 124),
    ],
)  # fmt: skip
def test_a_call_that_goes_wrong_is_a_clean_error(
    tmp_path: Path, what: str, tool: str, error: str, exit_code: int
) -> None:
    async def test(zoo: Zoo) -> None:
        pid = await zoo.output("pid")
        done = await zoo.call(what, tool=tool)
        assert (done.output, done.error, done.exit_code) == ("", error, exit_code)
        assert await zoo.output("pid") == pid

    with_zoo(tmp_path, test)


def test_the_traceback_goes_to_the_log(tmp_path: Path) -> None:
    async def test(zoo: Zoo) -> None:
        await zoo.call("raise")

    text = with_zoo(tmp_path, test).records.text()
    assert "Traceback" in text
    assert "RuntimeError: secret at /home/op" in text


def test_a_plain_handler_may_return_a_coroutine(tmp_path: Path) -> None:
    async def test(zoo: Zoo) -> None:
        assert await zoo.output("coroutine") == "async"

    with_zoo(tmp_path, test)


def test_huge_output_is_cut_and_odd_text_made_valid(tmp_path: Path) -> None:
    async def test(zoo: Zoo) -> None:
        huge = await zoo.output("huge")
        assert len(huge) < 1_000_000
        assert huge.endswith("of 100000000 characters shown]\n")
        assert await zoo.output("surrogate") == "a?"

    with_zoo(tmp_path, test)


@pytest.mark.parametrize("what", ["exit", "segv"])
def test_a_death_ends_its_calls_and_the_plugin_comes_back(tmp_path: Path, what: str) -> None:
    async def test(zoo: Zoo) -> None:
        pid = await zoo.output("pid")
        beside = asyncio.create_task(zoo.call("sleep", "50", tool="zoo-async", agent="b"))
        await zoo.output("echo")
        for call in (zoo.call(what), beside):
            with pytest.raises(Failed, match="process ended during the call") as caught:
                await call
            assert caught.value.executed == "maybe"
        assert await zoo.output("pid") != pid

    text = with_zoo(tmp_path, test).records.text()
    assert ("it exited with status 7" if what == "exit" else "signal 11 ended it") in text


def test_a_kill_from_outside_is_survived(tmp_path: Path) -> None:
    async def test(zoo: Zoo) -> None:
        for _ in range(2):
            os.kill(int(await zoo.output("pid")), signal.SIGKILL)
            await until(lambda: not zoo.plugin.is_up)
        assert await zoo.output("echo", "hi") == "hi"

    with_zoo(tmp_path, test)


def test_an_event_loop_that_blocks_costs_the_plugin_its_process(tmp_path: Path) -> None:
    async def test(zoo: Zoo) -> None:
        pid = await zoo.output("pid")
        call = asyncio.create_task(zoo.call("block", tool="zoo-async"))
        await until((zoo.data / "blocked").exists)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(Failed):  # it was waiting behind the blocked loop
            await zoo.call("pid")
        assert await zoo.output("pid") != pid

    assert "its event loop was blocked" in with_zoo(tmp_path, test).records.text()


@pytest.mark.parametrize(("what", "tool"), [("hang", "zoo"), ("stubborn", "zoo-async")])
def test_calls_that_never_end_cost_the_plugin_its_process(tmp_path: Path, what: str, tool: str) -> None:
    async def hang(zoo: Zoo, count: int, agent: str) -> None:
        calls = [asyncio.create_task(zoo.call(what, tool=tool, agent=agent)) for _ in range(count)]
        await asyncio.sleep(0)  # they are sent, in this order, before the next
        await zoo.output("echo", agent="c")
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

    async def test(zoo: Zoo) -> None:
        pid = await zoo.output("pid", agent="c")
        await hang(zoo, 7, "a")
        assert await zoo.output("pid", agent="c") == pid
        await asyncio.gather(hang(zoo, 7, "a"), hang(zoo, 7, "b"))
        await until(lambda: "cancelled calls did not end" in zoo.records.text())
        assert await zoo.output("pid", agent="c") != pid

    with_zoo(tmp_path, test)


def test_one_agents_hanging_calls_leave_room_for_another(tmp_path: Path) -> None:
    async def test(zoo: Zoo) -> None:
        hanging = [asyncio.create_task(zoo.call("hang", agent="a")) for _ in range(40)]
        await asyncio.sleep(0)
        assert await zoo.output("echo", "hi", agent="b") == "hi"
        for call in hanging:
            call.cancel()
        await asyncio.wait(hanging)

    with_zoo(tmp_path, test)


def test_a_plugin_holds_a_bounded_number_of_calls(tmp_path: Path) -> None:
    async def test(zoo: Zoo) -> None:
        count = plugin_process.CALLS_PER_PLUGIN
        held = [
            asyncio.create_task(zoo.call("hang", tool="zoo-async", agent=f"a{i % 16}")) for i in range(count)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await zoo.call("echo")
        for call in held:
            call.cancel()
        await asyncio.wait(held)
        assert await zoo.output("echo", "hi") == "hi"

    with_zoo(tmp_path, test)


def test_prints_and_log_records_reach_the_log_with_their_level(tmp_path: Path) -> None:
    async def test(zoo: Zoo) -> None:
        await zoo.output("print", "READY")
        await zoo.output("log", "now")
        await until(lambda: zoo.records.text().count("INFO READY") == 2)

    assert "WARNING plugin: careful now" in with_zoo(tmp_path, test).records.text()


def test_a_flood_of_prints_is_bounded_and_slows_no_call(tmp_path: Path) -> None:
    async def test(zoo: Zoo) -> None:
        flood = asyncio.create_task(zoo.call("flood"))
        assert await zoo.output("echo", "hi") == "hi"
        await flood

    assert len(with_zoo(tmp_path, test).records.records) < 2000


def test_a_plugin_sees_no_other_plugins_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_PLUGINS_TOKEN", "hunter2")

    async def test(zoo: Zoo) -> None:
        environment = await zoo.output("env")
        assert "PATH=" in environment
        assert "hunter2" not in environment
        assert "BEIGE" not in environment
        assert "opensesame" not in await zoo.output("cmdline")

    with_zoo(tmp_path, test, {"token": "opensesame"})


def test_nonsense_on_the_socket_costs_the_plugin_its_process(tmp_path: Path) -> None:
    async def test(zoo: Zoo) -> None:
        number = (await zoo.output("cmdline")).split("\0")[7]
        with pytest.raises(Failed):
            await zoo.call("rogue", number)
        assert await zoo.output("echo", "hi") == "hi"

    assert "it broke the protocol: a frame of" in with_zoo(tmp_path, test).records.text()


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"raise": True}, "create_plugin raised RuntimeError"),
        ({"exit": True}, "it exited with status 9"),
        ({"big": "x" * MAX_TO_PLUGIN}, "it exited with status 3"),
    ],
    ids=["raises", "exits", "too-big"],
)
def test_a_plugin_that_does_not_load_is_reported(
    tmp_path: Path, config: dict[str, Any], problem: str
) -> None:
    async def test(zoo: Zoo) -> None:
        with pytest.raises(BeigeError) as caught:
            await zoo.call("echo")
        assert str(caught.value) == f"plugin 'zoo' is not loaded: {problem}"
        assert (caught.value.code, caught.value.executed) == ("failed", "no")

    assert f"ERROR plugin is not loaded: {problem}" in with_zoo(tmp_path, test, config).records.text()


def test_a_process_that_cannot_start_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        zoo = Zoo(tmp_path)
        zoo.data.rmdir()
        await zoo.plugin.start()
        assert "its process could not be started" in zoo.plugin.problem
        await zoo.plugin.close()

    asyncio.run(main())


def test_the_environment_is_an_allowlist() -> None:
    given = {"PATH": "p", "LC_ALL": "C", "TOKEN": "t", "BEIGE_HOME": "h", "PYTHONPATH": "x"}
    assert plugin_environment(given) == {"PATH": "p", "LC_ALL": "C"}
