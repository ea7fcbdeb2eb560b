"""The policy process over a real bus: who may do what is what the configuration says."""

import asyncio

import pytest

from beige.bus import Bus
from beige.errors import Denied, Malformed, Unavailable
from beige.messages.sandbox import ExecRequest, ExecResult
from beige.messages.tools import ToolCall, ToolResult
from beige.testing import House, short_home

CONFIG = """
{ llm: { providers: { demo: { api: "scripted", script: "script.json5" } } },
  plugins: { kv: { path: "bundled:kv" } },
  agents: {
    travel: { model: { provider: "demo", model: "m" }, tools: ["kv"], sandbox: { image: "i" } },
    bare: { model: { provider: "demo", model: "m" }, tools: [], sandbox: { image: "i" } },
  } }
"""


@pytest.fixture
def house():
    with short_home() as home:
        home.config.write_text(CONFIG)
        (home.root / "script.json5").write_text("[]")
        with House(home) as house:
            for name in ("broker", "policy", "audit"):
                house.start(name)
            yield house


class Executors:
    """sandbox and tools as handlers that note what reached them."""

    def __init__(self, home):
        self.reached = []
        self.sandbox, self.tools = Bus(home, "sandbox/0"), Bus(home, "tools/0")
        self.cli, self.bridge = Bus(home, "cli/0"), Bus(home, "bridge/0")

        async def execute(request, body):
            self.reached.append((request.agent, body.command))
            return ExecResult(0)

        async def call(request, body):
            self.reached.append((request.agent, body.tool))
            return ToolResult(True, "OK")

        self.sandbox.serve("sandbox", {"sandbox.exec": execute})
        self.tools.serve("tools", {"tools.call": call})

    async def __aenter__(self):
        for bus in (self.sandbox, self.tools, self.cli, self.bridge):
            await bus.start()
        return self

    async def __aexit__(self, *_):
        for bus in (self.cli, self.bridge, self.sandbox, self.tools):
            await bus.close()


def test_the_configuration_decides(house):
    async def work():
        async with Executors(house.home) as executors:
            call = executors.bridge.call
            assert (await call("tools.call", ToolCall("kv", ["get"]), agent="travel")).output == "OK"
            with pytest.raises(Denied) as no:
                await call("tools.call", ToolCall("git"), agent="travel")
            assert str(no.value) == "Permission denied: tool 'git' not allowed for agent 'travel'"
            with pytest.raises(Denied, match="tool 'kv' not allowed for agent 'bare'"):
                await call("tools.call", ToolCall("kv"), agent="bare")
            with pytest.raises(Denied, match="agent 'nobody' is not configured"):
                await executors.cli.call("sandbox.exec", ExecRequest("true"), agent="nobody")
            await executors.cli.call("sandbox.exec", ExecRequest("true"), agent="bare")
            assert executors.reached == [("travel", "kv"), ("bare", "true")]

    asyncio.run(work())


def test_a_body_that_cannot_be_read_is_malformed_and_names_the_field(house):
    async def work():
        async with Executors(house.home) as executors:
            wrong = ToolCall("kv")
            wrong.args = [1]
            with pytest.raises(Malformed, match=r"Expected `str`, got `int`.*args"):
                await executors.bridge.call("tools.call", wrong, agent="travel")
            assert executors.reached == []

    asyncio.run(work())


def test_without_policy_nothing_executes(house):
    house.stop("policy")

    async def work():
        async with Executors(house.home) as executors:
            with pytest.raises(Unavailable, match="policy") as caught:
                await executors.bridge.call("tools.call", ToolCall("kv"), agent="travel")
            assert caught.value.executed == "no"
            house.start("policy")
            await executors.bridge.call("tools.call", ToolCall("kv"), agent="travel")
            assert executors.reached == [("travel", "kv")]

    asyncio.run(work())


def test_a_wrong_configuration_is_refused_at_start(house):
    house.home.config.write_text("{ agents: 3 }")
    with pytest.raises(RuntimeError, match="configuration error"):
        house.start("policy/1")
