"""Hooks in a plugin's own real process: what they are told, how they fail, and that no tool holds them up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from beige.errors import BeigeError, DeadlineExceeded, Failed, Overloaded
from beige.messages.tools import HookCall
from beige.plugins import Provides
from services.tools import frames
from services.tools.plugin_process import (
    CALLS_PER_PLUGIN,
    HOOKS_PER_PLUGIN,
    TOLD_PER_PLUGIN,
    PluginProcess,
)
from services.tools.worker import THREADS

SOURCE = """
import asyncio, os, sys, time
from beige.plugins import Refuse, Replace

class Plugin:
    def __init__(self, ctx): self.ctx = ctx

    def register(self, reg):
        reg.tool("ears", self.tool, timeout_s=20)
        reg.hook("prePrompt", self.before)
        reg.hook("postResponse", self.after)
        reg.hook("modelSwitched", self.switched)

    def tool(self, call): time.sleep(1000)

    def before(self, call):
        what, _, rest = call.text.partition(" ")
        if what == "who":
            of = f"{call.agent} {call.session} {call.channel}"
            return Replace(f"{call.hook} {of} {call.model} {call.config}")
        if what == "refuse": return Refuse(rest)
        if what == "raise": raise ValueError("secret at /home/op")
        if what == "str": return "a string"
        if what == "exit": os._exit(7)
        if what == "hang": time.sleep(1000)

    async def after(self, call):
        if call.text == "hang": await asyncio.sleep(1000)
        return Replace(call.text.upper())

    def switched(self, call):
        (self.ctx.data_dir / "told").write_text(f"{call.previous_model} {call.model} {call.reason}")

def create_plugin(config, ctx): return Plugin(ctx)
"""
PROVIDES = Provides(tools=("ears",), hooks=("prePrompt", "postResponse", "modelSwitched"))


class Ears:
    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.data.mkdir()
        (directory / "plugin.py").write_text(SOURCE)
        load = frames.Load("ears", str(directory), str(self.data), PROVIDES, {"k": 1}, {"b": {"k": 2}})
        self.plugin = PluginProcess(load, logging.getLogger("ears"))

    async def hear(self, call: HookCall, agent: str = "a", timeout_s: float = 30.0) -> frames.Answered:
        return await self.plugin.hook(call, agent=agent, session="s", channel="c", timeout_s=timeout_s)

    async def before(self, text: str, agent: str = "a", timeout_s: float = 30.0) -> frames.Answered:
        return await self.hear(HookCall("ears", "prePrompt", text, model="p/m"), agent, timeout_s)

    async def tool(self, agent: str) -> frames.Done:
        return await self.plugin.call("ears", [], agent=agent, session="", channel="", cwd="")


def with_ears(directory: Path, test: Callable[[Ears], Awaitable[None]]) -> None:
    async def main() -> None:
        ears = Ears(directory)
        await ears.plugin.start()
        try:
            async with asyncio.timeout(60):
                await test(ears)
        finally:
            await ears.plugin.close()

    uvloop.run(main())


def test_a_hook_knows_whose_prompt_it_is_and_that_agents_config(tmp_path: Path) -> None:
    async def test(ears: Ears) -> None:
        assert (await ears.before("who")).text == "prePrompt a s c p/m {'k': 1}"
        assert (await ears.before("who", "b")).text == "prePrompt b s c p/m {'k': 2}"
        assert (await ears.before("nothing")).state == "unchanged"
        assert (await ears.hear(HookCall("ears", "postResponse", "loud"))).text == "LOUD"
        refused = await ears.before("refuse no cards")
        assert (refused.state, refused.reason) == ("refused", "no cards")

    with_ears(tmp_path, test)


@pytest.mark.parametrize(
    ("text", "timeout_s", "kind", "problem"),
    [
        ("raise", 30.0, Failed, "plugin 'ears' failed (ValueError); the gateway's log has the details"),
        (
            "str",
            30.0,
            Failed,
            "plugin 'ears' answered prePrompt with a str instead of None, Replace or Refuse",
        ),
        ("exit", 30.0, Failed, "the plugin's process ended during the call"),
        ("hang", 0.2, DeadlineExceeded, "plugin 'ears' did not answer prePrompt within 0.2 s"),
    ],
)
def test_a_hook_that_fails_is_an_error_and_the_next_one_runs(
    tmp_path: Path, text: str, timeout_s: float, kind: type[BeigeError], problem: str
) -> None:
    async def test(ears: Ears) -> None:
        with pytest.raises(kind) as caught:
            await ears.before(text, timeout_s=timeout_s)
        assert (str(caught.value), caught.value.executed) == (problem, "maybe")
        assert (await ears.before("refuse x")).state == "refused"

    with_ears(tmp_path, test)


def test_an_agent_that_fills_a_tool_holds_up_no_hook(tmp_path: Path) -> None:
    async def test(ears: Ears) -> None:
        calls = [asyncio.create_task(ears.tool(f"agent{n % 8}")) for n in range(CALLS_PER_PLUGIN)]
        await asyncio.sleep(0)
        assert len(calls) > THREADS
        with pytest.raises(Overloaded):  # the tool is full indeed
            await ears.tool("a")
        assert (await ears.before("who", "agent0")).state == "replaced"
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

    with_ears(tmp_path, test)


def test_hooks_that_hang_are_bounded_by_their_time_waiting_included(tmp_path: Path) -> None:
    async def test(ears: Ears) -> None:
        hanging = HookCall("ears", "postResponse", "hang")
        calls = [ears.hear(hanging, f"a{n % 4}", 0.5) for n in range(HOOKS_PER_PLUGIN)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(error) for error in found} == {DeadlineExceeded}

    with_ears(tmp_path, test)


def test_a_notification_arrives_and_nobody_waits_for_it(tmp_path: Path) -> None:
    async def test(ears: Ears) -> None:
        told = HookCall("ears", "modelSwitched", model="p/b", previous_model="p/a", reason="p/a: overloaded")
        ears.plugin.tell(told, agent="a", session="s", channel="c", timeout_s=30.0)
        while not (ears.data / "told").exists():
            await asyncio.sleep(0.005)
        hang = HookCall("ears", "prePrompt", "hang")
        with pytest.raises(Overloaded):
            for _ in range(TOLD_PER_PLUGIN + 1):
                ears.plugin.tell(hang, agent="b", session="", channel="", timeout_s=30.0)
        assert (await ears.hear(HookCall("ears", "postResponse", "loud"), "b")).text == "LOUD"

    with_ears(tmp_path, test)
    assert (tmp_path / "data" / "told").read_text() == "p/a p/b p/a: overloaded"
