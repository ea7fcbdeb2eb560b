"""Containers across restarts, deaths and changes of the configuration; the docker exec fallback."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from beige.errors import BeigeError, Failed, NotFound, Unavailable
from beige.messages.base import AgentRef, Empty
from beige.messages.sandbox import ExecRequest, PatchRequest, ReadRequest, WriteRequest
from services.sandbox.engine import Engine
from services.sandbox.service import seccomp_profile
from services.sandbox.spec import HOME_LABEL, home_digest, ownership_spec

pytestmark = pytest.mark.docker


@pytest.fixture
def alone(make_house, sandbox_image, tools):
    """A house of its own, for tests that break it."""
    with make_house({"travel": tools.agent(sandbox_image)}) as house:
        yield house


async def ensure(bus, name="travel"):
    return await bus.call("sandbox.ensure", AgentRef(), agent=name, ttl_s=60)


def pid_of(tools, container):
    return tools.docker("inspect", "--format", "{{.State.Pid}} {{.Id}}", container)


def test_a_container_is_made_once_and_shared_by_callers(alone, tools):
    async def test(bus):
        assert alone.containers() == []
        outputs = await asyncio.gather(*(tools.out(bus, f"echo {n}") for n in range(10)))
        assert outputs == [f"{n}\n" for n in range(10)]
        assert alone.containers() == [alone.container("travel")]
        info = await ensure(bus)
        assert (info.agent, info.state, info.executor) == ("travel", "running", "init")
        assert info.container == alone.container("travel")

    alone.operate(test)


def test_a_killed_service_finds_its_container_again(alone, tools):
    async def before(bus):
        await tools.out(bus, "echo kept > file; echo tmp > /tmp/file; nohup sleep 7781 >/dev/null 2>&1 &")

    async def after(bus):
        assert await tools.out(bus, "cat file /tmp/file") == "kept\ntmp\n"

    alone.operate(before)
    was = pid_of(tools, alone.container("travel"))
    alone.kill("sandbox")
    alone.start("sandbox")
    alone.operate(after)
    assert pid_of(tools, alone.container("travel")) == was


def test_a_running_command_does_not_survive_the_service(alone, tools):
    """Nobody would hear of its end: the executor kills what a lost connection leaves."""

    async def before(bus):
        call = asyncio.create_task(tools.bash(bus, "sleep 7782; touch survived"))
        async with asyncio.timeout(10):
            while (await tools.bash(bus, "pgrep -f '^sleep 7782'")).exit_code:
                await asyncio.sleep(0.02)
        alone.kill("sandbox")
        with pytest.raises(BeigeError) as caught:
            await call
        assert caught.value.executed == "maybe"

    async def after(bus):
        assert (await tools.bash(bus, "pgrep -f '^sleep 7782'")).exit_code == 1
        assert (await tools.bash(bus, "ls survived")).exit_code == 2

    alone.operate(before)
    alone.start("sandbox")
    alone.operate(after)


def test_an_orderly_stop_removes_the_container_and_keeps_the_workspace(alone, tools):
    async def before(bus):
        await tools.out(bus, "echo kept > file")

    alone.operate(before)
    assert alone.stop("sandbox") == 0
    assert alone.containers() == []
    assert (alone.home.workspace("travel") / "file").read_text() == "kept\n"
    assert not alone.home.exec_socket("travel").exists()
    alone.start("sandbox")

    async def after(bus):
        assert await tools.out(bus, "cat file") == "kept\n"

    alone.operate(after)


@pytest.mark.parametrize("command", [("kill",), ("rm", "--force"), ("stop", "--time", "0")])
def test_a_container_that_dies_from_outside_is_made_again(command, alone, tools):
    async def test(bus):
        await tools.out(bus, "echo kept > file")
        running = asyncio.create_task(tools.bash(bus, "sleep 7783"))
        async with asyncio.timeout(10):
            while (await tools.bash(bus, "pgrep -f '^sleep 7783'")).exit_code:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(tools.docker, *command, alone.container("travel"))
        with pytest.raises(Failed, match=r"was lost: the container (was removed|ended)") as caught:
            await running
        assert caught.value.executed == "maybe"
        assert await tools.out(bus, "cat file") == "kept\n"

    alone.operate(test)


def test_a_paused_container_ends_in_an_error_and_is_replaced(alone, tools):
    """An executor that hangs is noticed by its command's timeout, long before the call's deadline, whose
    error would be another one."""

    async def test(bus):
        await tools.out(bus, "true")
        tools.docker("pause", alone.container("travel"))
        with pytest.raises(Failed, match="paused"):
            await tools.bash(bus, "true", timeout_s=0.5)
        assert await tools.out(bus, "echo back") == "back\n"

    alone.operate(test)


def test_remove_ends_everything_and_the_next_call_makes_a_new_one(alone, tools):
    async def test(bus):
        await tools.out(bus, "echo kept > file; nohup setsid sleep 7784 >/dev/null 2>&1 &")
        info = await bus.call("sandbox.remove", AgentRef(), agent="travel")
        assert (info.state, info.container) == ("absent", "")
        assert alone.containers() == []
        assert (await tools.bash(bus, "cat file; pgrep -f '^sleep 7784'")).stdout == b"kept\n"

    alone.operate(test)


def test_a_changed_configuration_replaces_the_container(alone, tools, sandbox_image):
    async def before(bus):
        await tools.out(bus, "true")

    async def after(bus):
        limit = "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null || true"
        assert await tools.out(bus, limit) == "99\n"

    alone.operate(before)
    alone.kill("sandbox")
    tools.write_config(alone.home, {"travel": tools.agent(sandbox_image, pids=99)})
    alone.start("sandbox")
    alone.operate(after)


def test_containers_of_agents_no_longer_configured_are_removed(alone, tools, sandbox_image):
    async def before(bus):
        await tools.out(bus, "true")

    alone.operate(before)
    alone.kill("sandbox")
    tools.write_config(alone.home, {"else": tools.agent(sandbox_image)})
    alone.start("sandbox")
    end = time.monotonic() + 20
    while alone.containers() and time.monotonic() < end:
        time.sleep(0.05)
    assert alone.containers() == []


def test_a_strangers_container_with_our_name_is_not_touched(alone, tools, sandbox_image):
    name = alone.container("travel")
    tools.docker("create", "--name", name, "--network=none", sandbox_image)
    try:

        async def test(bus):
            with pytest.raises(Failed, match="name is taken"):
                await ensure(bus)

        alone.operate(test)
        assert tools.docker("inspect", "--format", "{{.State.Status}}", name) == "created"
    finally:
        tools.docker("rm", "--force", name)


def test_two_homes_keep_apart(alone, make_house, sandbox_image, tools):
    with make_house({"travel": tools.agent(sandbox_image)}) as second:

        async def touch(bus):
            await tools.out(bus, "touch here")

        async def look(bus):
            assert await tools.out(bus, "ls") == ""

        alone.operate(touch)
        second.operate(look)
    assert alone.containers() == [alone.container("travel")]


def test_a_missing_image_names_the_remedy(make_house, tools):
    with make_house({"travel": tools.agent("beige-sandbox:no-such-tag")}) as house:

        async def test(bus):
            with pytest.raises(Failed, match="beige image build") as caught:
                await ensure(bus)
            assert caught.value.executed == "no"
            with pytest.raises(NotFound):
                await ensure(bus, "nobody")

        house.operate(test)


def test_without_an_engine_the_service_lives_and_says_so(make_house, sandbox_image, tools):
    agents = {"travel": tools.agent(sandbox_image)}
    with make_house(agents, DOCKER_HOST="unix:///nonexistent/docker.sock") as house:

        async def test(bus):
            for _ in range(2):
                with pytest.raises(Unavailable, match="beige doctor"):
                    await ensure(bus)
                with pytest.raises(Unavailable, match="beige doctor"):
                    await tools.bash(bus, "true")
            with pytest.raises(Unavailable):
                await bus.call("sandbox.list", Empty())

        house.operate(test)


def test_the_list_shows_every_configured_agent(alone):
    async def test(bus):
        (info,) = (await bus.call("sandbox.list", Empty())).sandboxes
        assert (info.agent, info.state, info.executor) == ("travel", "absent", "")
        await ensure(bus)
        (info,) = (await bus.call("sandbox.list", Empty())).sandboxes
        assert (info.state, info.executor) == ("running", "init")

    alone.operate(test)


def test_an_ordinary_users_workspace_is_given_away_by_a_helper_container(alone, sandbox_image, tools):
    """What a gateway that is not root does; checked as root, with a directory of somebody else."""
    path = alone.home.workspace("travel")
    path.mkdir(parents=True)
    (path / "inside").write_text("x")
    (path / "link").symlink_to("/etc/passwd")
    for entry in (path, path / "inside"):
        os.chown(entry, 1234, 1234)
    passwd = os.stat("/etc/passwd")

    async def main():
        engine = Engine()
        try:
            return await engine.run_helper(
                ownership_spec(alone.home, "travel", sandbox_image, seccomp_profile("seccomp.json"))
            )
        finally:
            await engine.close()

    assert asyncio.run(main()) == (0, "")
    assert (path.stat().st_uid, (path / "inside").stat().st_uid) == (64000, 64000)
    assert (path / "link").lstat().st_uid == 64000
    assert os.stat("/etc/passwd").st_uid == passwd.st_uid
    label = f"label={HOME_LABEL}={home_digest(alone.home)}"
    assert tools.docker("ps", "--all", "--quiet", "--filter", label) == ""


@pytest.fixture(scope="module")
def foreign(make_house, foreign_image, tools):
    with make_house({"travel": tools.agent(foreign_image)}) as house:
        yield house


def test_an_image_without_our_executor_works_through_docker_exec(foreign, tools):
    async def test(bus):
        assert (await ensure(bus)).executor == "docker-exec"
        result = await tools.bash(bus, "echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        data = bytes(range(256)) * 1000
        assert (await tools.bash(bus, "cat", stdin=data)).stdout == data
        await bus.call("sandbox.write", WriteRequest("a 'b\n", b"one\n"), agent="travel")
        await bus.call("sandbox.patch", PatchRequest("a 'b\n", "one", "two"), agent="travel")
        result = await bus.call("sandbox.read", ReadRequest("a 'b\n"), agent="travel")
        assert result.content == b"two\n"

    foreign.operate(test)


def test_the_fallback_has_the_same_walls(foreign, tools):
    async def test(bus):
        command = "id -u; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status | cut -f2"
        status = await tools.out(bus, command)
        assert status == "64000\n0000000000000000\n1\n2\n"
        assert tools.CANARY not in await tools.out(bus, "env")

    foreign.operate(test)


def test_the_fallback_cuts_output(foreign, tools):
    async def test(bus):
        result = await tools.bash(bus, "yes | head -c 3000000; echo last")
        assert result.stdout_bytes == 3_000_005
        assert result.stdout_cut == 3_000_005 - 256 * 1024 - 16 * 1024
        assert result.stdout.endswith(b"last\n")

    foreign.operate(test)


def test_the_fallback_kills_on_timeout_and_cancel(foreign, tools):
    sleepers = "setsid sleep 7791 & nohup sleep 7792 >/dev/null 2>&1 & sleep 7793"

    async def gone(bus):
        async with asyncio.timeout(15):
            while (await tools.bash(bus, "pgrep -f '^sleep 779'")).exit_code != 1:
                await asyncio.sleep(0.05)

    async def test(bus):
        result = await tools.bash(bus, f"echo before; {sleepers}", timeout_s=3.0)
        assert (result.exit_code, result.timed_out, result.stdout) == (124, True, b"before\n")
        await gone(bus)
        async with bus.open("sandbox.exec", ExecRequest(f"echo up; {sleepers}"), agent="travel") as stream:
            assert (await anext(aiter(stream))).data == b"up\n"
        await gone(bus)

    foreign.operate(test)


def test_the_fallback_does_not_wait_for_a_background_child(foreign, tools):
    async def test(bus):
        assert (await tools.bash(bus, "sleep 7794 & echo done")).stdout == b"done\n"
        assert (await tools.bash(bus, "pgrep -f '^sleep 7794'")).exit_code == 0, "it runs on"

    foreign.operate(test)


def test_the_fallback_says_what_can_not_be_run(foreign):
    async def test(bus):
        for fields in ({"argv": ["no-such-program"]}, {"command": "true", "cwd": "/nope"}):
            with pytest.raises(NotFound):
                await bus.call("sandbox.exec", ExecRequest(**fields), agent="travel")

    foreign.operate(test)


def test_the_fallback_survives_the_death_of_its_container(foreign, tools):
    async def test(bus):
        await tools.out(bus, "echo kept > kept")
        await asyncio.to_thread(tools.docker, "kill", foreign.container("travel"))
        for _ in range(2):  # the first call may be the one that finds out
            try:
                assert await tools.out(bus, "cat kept") == "kept\n"
                break
            except Failed:
                continue
        else:
            pytest.fail("the container was not made again")

    foreign.operate(test)


@pytest.mark.parametrize("name", ["a home: 100% 'odd' \"ü\"", "x" * 150])
def test_a_home_with_an_odd_path_works(name, make_house, sandbox_image, tools, tmp_path):
    with make_house({"travel": tools.agent(sandbox_image)}, tmp_path / name) as house:

        async def test(bus):
            assert await tools.out(bus, "echo kept > file; ls /tools/bin") == "kv\n"

        house.operate(test)
        assert (house.home.workspace("travel") / "file").read_text() == "kept\n"
