"""Workspaces with a size: the kernel stops the agent that fills one, and nothing is lost or left behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from beige.errors import Failed
from beige.messages.base import AgentRef
from beige.messages.sandbox import PatchRequest, WriteRequest
from services.sandbox.quota import mounted_from

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mkfs.ext4"), reason="needs root and ext4"),
]
SIZE = 16 * 1024 * 1024


def loops(home):
    """Loop devices that hold something of this home."""
    found = subprocess.run(
        ["losetup", "--noheadings", "--output=NAME,BACK-FILE"], capture_output=True, text=True, check=True
    )
    return [line for line in found.stdout.splitlines() if str(home.root) in line]


def mounted(home, name="travel"):
    return mounted_from(Path("/proc/self/mountinfo").read_text(), str(home.workspace(name))) is not None


@pytest.fixture
def bounded(make_house, sandbox_image, tools):
    """A house whose agent `travel` has 16 MiB, and `other` no limit."""
    agents = {"travel": tools.agent(sandbox_image, workspaceSize="16m"), "other": tools.agent(sandbox_image)}
    with make_house(agents) as house:
        yield house
        house.close()
        assert not mounted(house.home)
    assert loops(house.home) == []


def configure(house, tools, image, **sandbox):
    tools.write_config(house.home, {"travel": tools.agent(image, **sandbox), "other": tools.agent(image)})


async def show(bus, name="travel"):
    return await bus.call("sandbox.show", AgentRef(), agent=name, ttl_s=60)


def test_bytes_are_bounded_and_everybody_is_told(bounded, tools):
    async def test(bus):
        assert await tools.out(bus, "ls -A; stat -c '%u %a' .") == "64000 755\n"
        filled = await tools.bash(bus, "head -c 64m /dev/zero > big")
        assert filled.exit_code != 0
        assert b"No space left on device" in filled.stderr
        assert b"the workspace is full" in filled.stderr
        assert b"agents.travel.sandbox.workspaceSize" in filled.stderr
        for call in (
            bus.call("sandbox.write", WriteRequest("new", b"x" * 400_000), agent="travel"),
            bus.call("sandbox.write", WriteRequest("sub/new", b"x" * 400_000), agent="travel"),
        ):
            with pytest.raises(Failed, match="the workspace is full") as caught:
                await call
            assert caught.value.executed == "no"
        usage = (await show(bus)).workspace
        assert SIZE * 0.9 < usage.limit_bytes <= SIZE
        assert usage.limit_bytes - usage.used_bytes < 128 * 1024
        # The other one goes on, and so does this one when it has made room.
        assert await tools.out(bus, "head -c 32m /dev/zero > big; stat -c %s big", "other") == f"{32 << 20}\n"
        assert (await show(bus, "other")).workspace is None
        assert await tools.out(bus, "rm big; echo again > new; cat new") == "again\n"
        await bus.call("sandbox.patch", PatchRequest("new", "again", "patched"), agent="travel")
        assert await tools.out(bus, "cat new; ls -A") == "patched\nnew\n"

    bounded.operate(test)
    assert bounded.log("sandbox").count("travel: the workspace is full") == 1
    records = [json.loads(line) for line in bounded.home.audit_log.read_text().splitlines()]
    assert "workspace full" in {record.get("error") for record in records}


def test_files_are_bounded(bounded, tools):
    async def test(bus):
        made = await tools.bash(bus, "i=0; while : > f$i; do i=$((i+1)); done; echo $i")
        assert int(made.stdout) < SIZE // 8192
        assert b"No space left on device" in made.stderr
        failed = await tools.bash(bus, "touch another")
        assert b"the workspace is full" in failed.stderr

    bounded.operate(test)


def test_files_survive_whatever_ends_the_house(bounded, tools):
    async def write(bus):
        await tools.out(bus, "echo kept > file")

    async def read(bus):
        assert await tools.out(bus, "cat file; ls -A") == "kept\nfile\n"
        assert (await show(bus)).workspace.limit_bytes < SIZE

    async def remove(bus):
        await bus.call("sandbox.remove", AgentRef(), agent="travel", ttl_s=60)
        assert not mounted(bounded.home)
        assert loops(bounded.home) == []

    bounded.operate(write)
    bounded.kill("sandbox")  # container and mount stay, and are found again
    assert mounted(bounded.home)
    bounded.start("sandbox")
    bounded.operate(read)
    bounded.operate(remove)
    bounded.operate(read)
    assert bounded.stop("sandbox") == 0
    assert not mounted(bounded.home)
    assert loops(bounded.home) == []
    bounded.start("sandbox")
    bounded.operate(read)
    # A reboot: no container, no mount, a file system that was not unmounted.
    bounded.kill("sandbox")
    tools.docker("rm", "--force", bounded.container("travel"))
    subprocess.run(["umount", str(bounded.home.workspace("travel"))], check=True)
    bounded.start("sandbox")
    bounded.operate(read)


def test_without_its_mount_the_agent_can_write_nothing(bounded, tools):
    """Unmounted behind our back, the directory below is root's; the next container gets its mount again."""

    async def test(bus):
        await tools.out(bus, "echo kept > file")
        await bus.call("sandbox.remove", AgentRef(), agent="travel", ttl_s=60)
        below = bounded.home.workspace("travel")
        assert (below.stat().st_uid, below.stat().st_mode & 0o777, list(below.iterdir())) == (0, 0o700, [])
        assert await tools.out(bus, "cat file") == "kept\n"

    bounded.operate(test)


def test_it_grows_and_shrinks_with_the_configuration(bounded, tools, sandbox_image):
    limits = []

    async def look(bus):
        assert await tools.out(bus, "echo kept >> file; head -n1 file") == "kept\n"
        limits.append((await show(bus)).workspace.limit_bytes >> 20)

    async def fill(bus):
        await tools.out(bus, "head -c 20m /dev/urandom > big; sha256sum big > sum")

    async def does_not_fit(bus):
        with pytest.raises(Failed, match="do not fit into") as caught:
            await tools.out(bus, "true")
        assert caught.value.executed == "no"

    async def intact(bus):
        assert await tools.out(bus, "sha256sum -c sum") == "big: OK\n"

    def again(size, *tests):
        assert bounded.stop("sandbox") == 0
        configure(bounded, tools, sandbox_image, workspaceSize=size)
        bounded.start("sandbox")
        for test in tests:
            bounded.operate(test)

    bounded.operate(look)
    again("48m", look, fill)
    again("40m", look, intact)
    again("16m", does_not_fit)
    again("48m", look, intact)
    assert limits[0] < limits[2] < limits[1] == limits[3]


def test_a_workspace_that_had_no_limit_takes_its_files_along(make_house, sandbox_image, tools):
    with make_house({"travel": tools.agent(sandbox_image)}) as house:

        async def before(bus):
            await tools.out(
                bus, "mkdir -m 700 dir; echo kept > dir/file; ln -s /etc/passwd link; echo x > '\n'"
            )

        async def after(bus):
            assert await tools.out(bus, "cat dir/file; readlink link; stat -c %a dir; ls | wc -l") == (
                "kept\n/etc/passwd\n700\n4\n"
            )
            assert (await show(bus)).workspace is not None

        house.operate(before)
        house.kill("sandbox")  # its container runs on, in the unlimited directory
        configure(house, tools, sandbox_image, workspaceSize="16m")
        house.start("sandbox")
        house.operate(after)
        kept = house.home.workspace("travel").with_name("workspace.before-quota-1")
        assert (kept / "dir" / "file").read_text() == "kept\n"

        # Taken out of the configuration: the files are in the image, so it stays, with its limit.
        assert house.stop("sandbox") == 0
        configure(house, tools, sandbox_image)
        house.start("sandbox")
        house.operate(after)
        assert "no workspaceSize any more" in house.log("sandbox")
    assert loops(house.home) == []


def test_what_does_not_fit_stays_where_it_was(make_house, sandbox_image, tools):
    with make_house({"travel": tools.agent(sandbox_image)}) as house:

        async def before(bus):
            await tools.out(bus, "head -c 24m /dev/zero > big")

        async def refused(bus):
            with pytest.raises(Failed, match="can't have its workspaceSize"):
                await tools.out(bus, "true")

        house.operate(before)
        house.kill("sandbox")
        configure(house, tools, sandbox_image, workspaceSize="16m")
        house.start("sandbox")
        house.operate(refused)
        assert (house.home.workspace("travel") / "big").stat().st_size == 24 << 20
        assert not mounted(house.home)
    assert loops(house.home) == []


@pytest.mark.parametrize("tampering", ["open to others", "of somebody else", "a link"])
def test_an_image_that_somebody_else_could_write_is_not_mounted(bounded, tools, tampering):
    async def before(bus):
        await tools.out(bus, "echo kept > file")

    async def refused(bus):
        with pytest.raises(Failed, match="not this user's alone"):
            await tools.out(bus, "true")

    bounded.operate(before)
    assert bounded.stop("sandbox") == 0
    image = bounded.home.data / "workspaces" / "travel.ext4"
    assert (image.stat().st_mode & 0o777, image.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    if tampering == "open to others":
        image.chmod(0o666)
    elif tampering == "of somebody else":
        os.chown(image, 64000, 64000)
    else:
        image.rename(image.with_name("elsewhere"))
        image.symlink_to(image.with_name("elsewhere"))
    bounded.start("sandbox")
    bounded.operate(refused)
    assert not mounted(bounded.home)


def test_an_agent_no_longer_configured_keeps_no_mount(bounded, tools, sandbox_image):
    async def before(bus):
        await tools.out(bus, "echo kept > file")

    async def after(bus):
        await tools.out(bus, "true", "other")  # the recovery is over when nothing is left
        async with asyncio.timeout(30):
            while mounted(bounded.home):
                await asyncio.sleep(0.05)

    bounded.operate(before)
    bounded.kill("sandbox")
    tools.write_config(bounded.home, {"other": tools.agent(sandbox_image)})
    bounded.start("sandbox")
    bounded.operate(after)
