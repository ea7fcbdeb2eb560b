"""Whom the kernel killed for memory: a command, which is a result, or the first process, which ends all."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from beige.errors import Failed
from beige.messages.sandbox import LogsRequest

pytestmark = pytest.mark.docker
PIN = "head -c 12M /dev/zero > /tmp/pin; "
"""So that what a hog can get is less than the score of a first process at 1000, which is the limit."""
WAIT = "touch runs; while [ ! -e go ]; do sleep 0.05; done; "


@pytest.fixture
def alone(make_house, sandbox_image, tools):
    with make_house(
        {"travel": tools.agent(sandbox_image, memory="256m", homeSize="32m", tmpSize="16m")}
    ) as house:
        yield house


def offer_the_first(tools, container, image):
    """Whom a kernel short of memory kills in this container from now on: its first process."""
    first, *others = tools.docker("top", container, "-eo", "pid").split()[1:]
    assert first == tools.docker("inspect", "--format", "{{.State.Pid}}", container)
    spare = f"for p in {' '.join(others)}; do echo 0 > /proc/$p/oom_score_adj; done 2>/dev/null"
    script = f"echo 1000 > /proc/{first}/oom_score_adj && {{ {spare}; cat /proc/{first}/oom_score_adj; }}"
    here = ("--rm", "--pid=host", "--network=none", "--user=0", "--entrypoint=/bin/bash", image, "-c", script)
    # An engine without this capability set no floor under the others' scores either.
    done = tools.docker("run", "--cap-add=SYS_RESOURCE", *here, check=False) or tools.docker("run", *here)
    assert done == "1000"


async def appears(path):
    async with asyncio.timeout(60):
        while not path.exists():
            await asyncio.sleep(0.02)


async def out_of_memory(bus):
    found = await bus.call("sandbox.logs", LogsRequest(), agent="travel", ttl_s=60)
    return found.info.state, found.exit_code, found.out_of_memory


def test_an_executor_that_the_kernel_kills_is_told_and_replaced(alone, tools, sandbox_image):
    workspace = alone.home.workspace("travel")

    async def test(bus):
        hog = f"echo kept > file; {PIN} {WAIT} exec tail /dev/zero"
        running = [asyncio.create_task(tools.bash(bus, command)) for command in (hog, f"{WAIT} sleep 8821")]
        await appears(workspace / "runs")
        container = alone.container("travel")
        await asyncio.to_thread(offer_the_first, tools, container, sandbox_image)
        (workspace / "go").touch()
        for one in running:
            with pytest.raises(Failed, match="was lost: the container ran out of memory") as caught:
                await one
            assert caught.value.executed == "maybe"
        assert await out_of_memory(bus) == ("exited", 137, True)
        assert await tools.out(bus, "cat file") == "kept\n"

    alone.operate(test)
    assert "replacing the container of travel (exited, out of memory)" in alone.log("sandbox")


def test_who_waited_is_told_though_another_has_replaced_the_container(alone, tools):
    """The next caller does not wait until those before have heard why theirs ended."""

    async def test(bus):
        running = [asyncio.create_task(tools.bash(bus, f"{WAIT}")) for _ in range(8)]
        await appears(alone.home.workspace("travel") / "runs")
        killed = asyncio.create_task(asyncio.to_thread(tools.docker, "kill", alone.container("travel")))
        while not all(one.done() for one in running):
            with contextlib.suppress(Failed):
                await tools.bash(bus, "true")
        await killed
        for error in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(error, Failed) and "the container ended (exited, exit code 137)" in str(error)

    alone.operate(test)


def test_a_kill_from_outside_is_not_blamed_on_a_command_killed_before(alone, tools):
    async def test(bus):
        hog = await tools.bash(bus, "tail /dev/zero")
        assert b"memory limit of 256m" in hog.stderr
        running = asyncio.create_task(tools.bash(bus, f"echo kept > file; {WAIT}"))
        await appears(alone.home.workspace("travel") / "runs")
        await asyncio.to_thread(tools.docker, "kill", alone.container("travel"))
        with pytest.raises(Failed, match=r"was lost: the container ended \(exited, exit code 137\)"):
            await running
        named = ("inspect", "--format", "{{.State.OOMKilled}}", alone.container("travel"))
        assert tools.docker(*named) == "true", "the engine's flag stays, which is why it is not believed"
        assert await out_of_memory(bus) == ("exited", 137, False)
        assert await tools.out(bus, "cat file") == "kept\n"

    alone.operate(test)
    assert "replacing the container of travel (exited)" in alone.log("sandbox")
