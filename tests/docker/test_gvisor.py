"""Agents in gVisor, on an engine of the test's own that lists it.

Agents: `travel` says nothing of a runtime; `plain` declines gVisor and is the control; `narrow` and `wide`
have egress, `wide` is `open` and asks for gVisor; `full` has a workspace with a size; `deaf` asks for a
gVisor whose sockets can't work.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from beige import auditlog
from beige.errors import Failed
from beige.messages.sandbox import ExecRequest, PatchRequest, ReadRequest, WriteRequest
from tests.docker import private_engine
from tests.simulator.internet import Internet, answer, read_head

pytestmark = pytest.mark.docker

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
RUNSC = CACHE / "beige/runsc/runsc"
"""Where scripts/runsc.sh puts it."""
RUNTIMES = {
    "runsc": {"path": str(RUNSC), "runtimeArgs": ["--network=none", "--host-uds=open"]},
    "runsc-deaf": {"path": str(RUNSC), "runtimeArgs": ["--network=none"]},
}
KERNEL = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n"
"""What gVisor's kernel says of itself, the same in every release."""


def page(connection):
    read_head(connection)
    connection.sendall(answer(b"hello from outside"))


class World:
    def __init__(self, house, engine, site):
        self.house, self.engine, self.site = house, engine, site

    def start_sandbox(self):
        """In the engine's mount namespace, where the workspaces with a size are mounted."""
        here = ("nsenter", f"--mount=/proc/{self.engine.pid}/ns/mnt", "--wd=/")
        self.house.start("sandbox", *here, sys.executable, "-P", "-m", "services.sandbox")

    def inspect(self, name, form):
        return self.engine.docker("inspect", "--format", form, self.house.container(name)).stdout.strip()


@pytest.fixture(scope="module")
def engine(sandbox_image):
    if not private_engine.possible():
        pytest.skip("a second engine needs root and dockerd")
    if not RUNSC.exists():
        pytest.skip("no gVisor: run scripts/runsc.sh")
    with private_engine.running(sandbox_image, RUNTIMES) as made:
        yield made
        assert made.docker("ps", "--all", "--quiet").stdout == "", "an orderly end left containers"


@pytest.fixture(scope="module")
def world(make_house, engine, sandbox_image, tools):
    with make_house({}, DOCKER_HOST=engine.host) as house, Internet(house.home) as internet:
        site = internet.site("web.example", page)
        way = {"egress": {"allow": [site.place]}}
        agents = {
            "travel": tools.agent(sandbox_image),
            "plain": tools.agent(sandbox_image, runtime="runc"),
            "narrow": tools.agent(sandbox_image, **way),
            "wide": tools.agent(sandbox_image, profile="open", runtime="runsc", **way),
            "full": tools.agent(sandbox_image, workspaceSize="16m"),
            "deaf": tools.agent(sandbox_image, runtime="runsc-deaf"),
        }
        for name in ("sandbox", "policy"):
            house.stop(name)
        tools.write_config(house.home, agents)
        house.start("policy")
        internet.start(house)
        house.start("bridge")
        house.start("tools")
        made = World(house, engine, site)
        made.start_sandbox()
        yield made


def test_a_sealed_agent_gets_gvisor_where_the_engine_lists_it(world, tools):
    async def test(bus):
        assert await tools.out(bus, "cat /proc/version") == KERNEL
        assert await tools.out(bus, "cat /proc/version", "plain") != KERNEL, "control"

    world.house.operate(test)
    runtimes = [world.inspect(name, "{{.HostConfig.Runtime}}") for name in ("travel", "plain")]
    assert runtimes == ["runsc", "runc"]


def test_the_core_tools_work(world, tools):
    async def call(bus, body, method):
        return await bus.call(f"sandbox.{method}", body, agent="travel", ttl_s=60)

    async def test(bus):
        seen = await tools.bash(bus, "cat; echo oops >&2; exit 3", stdin=b"given")
        assert (seen.exit_code, seen.stdout, seen.stderr) == (3, b"given", b"oops\n")
        await call(bus, WriteRequest("sub/file", b"one two\n" * 1000 + b"end\n"), "write")
        await call(bus, PatchRequest("sub/file", "one two\n" * 999 + "one two\nend", "three"), "patch")
        read = await call(bus, ReadRequest("sub/file"), "read")
        assert read.content == b"three\n"
        assert await tools.out(bus, "cat sub/file; stat -c %u sub/file") == "three\n64000\n"

    world.house.operate(test)
    assert (world.house.home.workspace("travel") / "sub/file").read_bytes() == b"three\n"


def test_a_plugin_is_called_from_inside_in_its_own_session(world):
    async def test(bus):
        body = ExecRequest("kv set place Lisbon && kv get place; kv get nothing")
        done = await bus.call("sandbox.exec", body, agent="travel", session="s-1", ttl_s=60)
        assert done.stdout == b"OK\nLisbon\n"
        assert done.exit_code == 1, done

    world.house.operate(test)
    log = auditlog.records_backwards(world.house.home.audit_log, 1 << 22)
    calls = [(r.agent, r.session) for r in log if r.tool == "kv" and r.phase == "finished"]
    assert calls == [("travel", "s-1")] * 3


def test_a_timeout_kills_the_whole_tree(world, tools):
    tree = "sleep 8811 & setsid sleep 8812 & (setsid sh -c 'sleep 8813 &' &); sleep 8814"

    async def test(bus):
        running = asyncio.create_task(tools.bash(bus, tree, timeout_s=6))
        async with asyncio.timeout(60):
            while (await tools.bash(bus, "pgrep -cf '^sleep 881'")).stdout != b"4\n":
                assert not running.done(), "control: they ran"
        assert (await running).exit_code == 124
        assert (await tools.bash(bus, "pgrep -f '^sleep 881'")).exit_code == 1

    world.house.operate(test)


@pytest.mark.parametrize("agent", ["narrow", "wide"])
def test_egress_works(world, agent, tools):
    async def test(bus):
        assert await tools.out(bus, f"curl -sS http://{world.site.place}/", agent) == "hello from outside"
        denied = await tools.out(bus, "curl -sS http://elsewhere.example/", agent)
        assert f'agents.{agent}.sandbox.egress.allow: "elsewhere.example:80"' in denied
        shut = await tools.bash(bus, f"curl --noproxy '*' -sS http://127.0.5.1:{world.site.port}/", agent)
        assert shut.exit_code == 7, "no way but the proxy"

    world.house.operate(test)


def test_open_in_gvisor_has_a_root_layer_of_its_own(world, tools):
    async def test(bus):
        script = (
            "cat /proc/version; cp /bin/echo /tmp/say && /tmp/say ran; echo x > $HOME/file && cat $HOME/file"
        )
        assert await tools.out(bus, script, "wide") == f"{KERNEL}ran\nx\n"

    world.house.operate(test)
    assert world.inspect("wide", "{{.HostConfig.Runtime}} {{.HostConfig.ReadonlyRootfs}}") == "runsc false"


def test_a_workspace_with_a_size_stops_the_agent_that_fills_it(world, tools):
    async def test(bus):
        filled = await tools.bash(bus, "head -c 64m /dev/zero > big", "full")
        assert filled.exit_code != 0
        assert b"No space left on device" in filled.stderr
        assert b"the workspace is full" in filled.stderr
        with pytest.raises(Failed, match="the workspace is full"):
            await bus.call("sandbox.write", WriteRequest("new", b"x" * 400_000), agent="full", ttl_s=60)
        assert (
            await tools.out(bus, "rm big; echo again > new; cat new; cat /proc/version", "full")
            == f"again\n{KERNEL}"
        )

    world.house.operate(test)
    assert world.house.log("sandbox").count("full: the workspace is full") == 1


def test_a_gvisor_without_sockets_is_refused_with_what_it_lacks(world, tools):
    async def test(bus):
        with pytest.raises(Failed, match=r"--host-uds=open") as caught:
            await tools.bash(bus, "true", "deaf")
        assert caught.value.executed == "no"

    world.house.operate(test)
