"""Threat: an agent that reads or changes the host's files.

A file that every user of the host may read and write is planted outside the workspaces; the agent
knows its path.
"""

from __future__ import annotations

import contextlib
import pwd

import pytest

from beige.errors import BeigeError
from beige.messages.sandbox import PatchRequest, ReadRequest, WriteRequest

pytestmark = pytest.mark.docker

REACHES = {
    "by its path": "cat {path}",
    "through /proc/self/root": "cat /proc/self/root{path}",
    "through PID 1's root": "cat /proc/1/root{path}",
    "through PID 1's directory": "cat /proc/1/cwd/../../../../../..{path}",
    "climbing out of the workspace": "cd {workspace}; cat ../../../../../../../../..{path}",
    "a symbolic link": "ln -sfn {path} {workspace}/link && cat {workspace}/link",
    "a link to its directory": "ln -sfn $(dirname {path}) {workspace}/dir && cat {workspace}/dir/*canary*",
    "looking for its name": "find / -path /proc -prune -o -name 'host-canary-*' -exec cat {{}} + 2>/dev/null",
    "writing to it": "echo changed >> {path} && cat {path}",
}
"""Commands that print the file's content where it can be reached."""


@pytest.mark.parametrize("command", REACHES.values(), ids=REACHES)
def test_a_file_of_the_host_can_not_be_reached(gateway, careless, command):
    before = gateway.canary_file.read_bytes()
    text = command.format(path=gateway.canary_file, workspace="/workspace")
    assert gateway.host_canary not in gateway.travel.sh(text).out
    assert gateway.canary_file.read_bytes() == before
    outside = command.format(path=gateway.canary_file, workspace=gateway.home.root / "careless")
    assert gateway.host_canary in careless.sh(outside.replace("find / ", "find /tmp ")).out, "control"
    gateway.canary_file.write_bytes(before)


def test_a_hard_link_out_of_the_workspace_can_not_be_made(gateway, careless):
    path, workspace = gateway.canary_file, gateway.home.workspace("travel")
    assert careless.sh(f"ln {path} {path}.hard && cat {path}.hard && rm {path}.hard").code == 0, "control"
    ran = gateway.travel.sh(
        f"ln {path} /workspace/hard; ln /etc/hostname /workspace/hard; ls /workspace/hard"
    )
    assert ran.code != 0
    assert not (workspace / "hard").exists()


MOUNTS = {"/workspace": True, "/tools/bin": False, "/tools/packages": False, "/run/beige": False}


@pytest.mark.parametrize("agent", ["travel", "other", "idle"])
def test_mounts_are_exactly_the_four_we_claim(gateway, careless, agent):
    home = gateway.home
    sources = {
        "/workspace": home.workspace(agent),
        "/tools/bin": home.launchers(agent),
        "/tools/packages": home.packages(agent),
        "/run/beige": home.agent_sockets(agent),
    }
    found = gateway.inspect(agent)["Mounts"]
    assert {m["Destination"]: m["RW"] for m in found} == MOUNTS
    assert {m["Destination"]: m["Source"] for m in found} == {k: str(v) for k, v in sources.items()}
    assert {m["Type"] for m in found} == {"bind"}
    assert {m["Destination"] for m in careless.inspect()["Mounts"]} - set(MOUNTS), "control"


INSIDE_MOUNTS = (
    "awk '$3 !~ /^(proc|sysfs|cgroup|cgroup2|devpts|mqueue|tmpfs|overlay)$/ {print $2}' /proc/mounts"
)


def test_seen_from_inside_nothing_else_is_mounted_from_a_disk(gateway, careless):
    """But for Docker's own three files, which are read-only and about the container alone."""
    engine = {"/etc/resolv.conf", "/etc/hostname", "/etc/hosts"}
    assert set(gateway.travel.out(INSIDE_MOUNTS).split()) - engine == set(MOUNTS)
    assert str(gateway.home.root) in careless.sh(INSIDE_MOUNTS).out.split(), "control"


def test_only_the_workspace_is_writable_on_a_disk(gateway):
    command = (
        "for d in $(awk '$3 !~ /^(proc|sysfs|cgroup2?|devpts|mqueue|tmpfs)$/ {print $2}' /proc/mounts); do "
        "test -d $d && touch $d/written 2>/dev/null && echo $d; done; rm -f /workspace/written"
    )
    assert gateway.travel.sh(command).out == "/workspace\n"


# --- read, write and patch --------------------------------------------------------------------------


@pytest.fixture
def traps(gateway):
    """Symbolic links in the workspace that lead to the host's file and directory."""
    gateway.travel.out(
        f"ln -sfn {gateway.canary_file} trap; ln -sfn {gateway.canary_file.parent} trapdir; "
        f"mkdir -p deep; ln -sfn ../../../../../../../../../..{gateway.canary_file} deep/trap"
    )
    yield ["trap", f"trapdir/{gateway.host_canary}", "deep/trap"]
    gateway.travel.out("rm -rf trap trapdir deep")


def test_core_tools_follow_links_inside_the_container_only(gateway, traps):
    before = gateway.canary_file.read_bytes()
    workspace = gateway.home.workspace("travel")
    for trap in traps:
        if not trap.startswith("deep"):
            assert (workspace / trap).read_bytes() == before, "control: open() on the host would follow it"
        for path in (f"/workspace/{trap}", f"/proc/self/root/workspace/{trap}"):
            with pytest.raises(BeigeError):
                gateway.call("sandbox.read", ReadRequest(path), agent="travel")
            with pytest.raises(BeigeError):
                gateway.call("sandbox.patch", PatchRequest(path, gateway.host_canary, "x"), agent="travel")
        with contextlib.suppress(BeigeError):
            gateway.call("sandbox.write", WriteRequest(f"/workspace/{trap}", b"changed"), agent="travel")
        assert gateway.canary_file.read_bytes() == before


ESCAPES = ["{path}", "/proc/1/root{path}", "../../../../../..{path}", "/proc/self/cwd/../..{path}"]


@pytest.mark.parametrize("escape", ESCAPES)
def test_core_tools_know_no_path_out(gateway, escape):
    before = gateway.canary_file.read_bytes()
    path = escape.format(path=gateway.canary_file)
    with pytest.raises(BeigeError):
        gateway.call("sandbox.read", ReadRequest(path), agent="travel")
    with pytest.raises(BeigeError):
        gateway.call("sandbox.patch", PatchRequest(path, gateway.host_canary, "x"), agent="travel")
    # A write may make that path in the container's own /tmp: the host's file is another one.
    with contextlib.suppress(BeigeError):
        gateway.call("sandbox.write", WriteRequest(path, b"changed"), agent="travel")
    assert gateway.canary_file.read_bytes() == before
    gateway.travel.sh(f"rm -rf {gateway.canary_file.parent}")


def test_core_tools_do_reach_the_workspace_control(gateway):
    gateway.call("sandbox.write", WriteRequest("/workspace/reached", b"before\n"), agent="travel")
    gateway.call("sandbox.patch", PatchRequest("/workspace/reached", "before", "after"), agent="travel")
    assert (gateway.home.workspace("travel") / "reached").read_bytes() == b"after\n"
    assert (
        gateway.call("sandbox.read", ReadRequest("/workspace/reached"), agent="travel").content == b"after\n"
    )


def test_what_an_agent_writes_belongs_to_nobody_on_the_host(gateway):
    gateway.travel.out("touch owned; chmod 777 owned")
    info = (gateway.home.workspace("travel") / "owned").stat()
    assert (info.st_uid, info.st_gid) == (64000, 64000)
    with pytest.raises(KeyError):
        pwd.getpwuid(64000)
