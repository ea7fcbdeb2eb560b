"""Threat: an agent that wants more power than its uid has: root, capabilities, system calls, devices.

Whatever is refused in the sandbox works, or is at least not refused, in the careless container.
"""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.docker

ENGINE = {
    "network mode": (lambda c: c["HostConfig"]["NetworkMode"], "none"),
    "read-only root": (lambda c: c["HostConfig"]["ReadonlyRootfs"], True),
    "no capability": (lambda c: (c["HostConfig"]["CapDrop"], c["HostConfig"]["CapAdd"] or []), (["ALL"], [])),
    "no new privileges": (lambda c: "no-new-privileges:true" in c["HostConfig"]["SecurityOpt"], True),
    "own seccomp profile": (
        lambda c: any(option.startswith("seccomp={") for option in c["HostConfig"]["SecurityOpt"]),
        True,
    ),
    "user": (lambda c: c["Config"]["User"], "64000:64000"),
    "memory, no swap": (
        lambda c: (c["HostConfig"]["Memory"], c["HostConfig"]["MemorySwap"]),
        (512 << 20, 512 << 20),
    ),
    "processes": (lambda c: c["HostConfig"]["PidsLimit"], 128),
    "processor": (lambda c: c["HostConfig"]["NanoCpus"], 10**9),
}


@pytest.mark.parametrize(("look", "expected"), ENGINE.values(), ids=ENGINE)
def test_the_engine_holds_the_flag(gateway, careless, look, expected):
    assert look(careless.inspect()) != expected, "control"
    assert look(gateway.inspect("travel")) == expected


def test_no_flag_undoes_another(gateway):
    found = gateway.inspect("travel")["HostConfig"]
    assert not found["Privileged"]
    assert (found["PidMode"], found["UTSMode"], found["UsernsMode"]) == ("", "", "")
    assert found["IpcMode"] == "private"
    assert not any(found[name] for name in ("Devices", "GroupAdd", "VolumesFrom", "Links", "PortBindings"))


STATUS = "grep -E '^{}:' /proc/self/status | cut -f2 | tr '\\n' ' '"
INSIDE = {
    "uid": ("id -u; id -g; id -G", "64000\n64000\n64000\n"),
    "effective capabilities": (STATUS.format("CapEff"), "0000000000000000 "),
    "all capabilities": (STATUS.format("(CapInh|CapPrm|CapBnd|CapAmb)"), "0000000000000000 " * 4),
    "NoNewPrivs": (STATUS.format("NoNewPrivs"), "1 "),
    "Seccomp": (STATUS.format("Seccomp"), "2 "),
    "writing /usr": ("touch /usr/written 2>/dev/null; echo $?", "1\n"),
    "writing /etc": ("echo x 2>/dev/null >/etc/passwd.new; echo $?", "1\n"),
    "running from /tmp": ("cp /bin/true /tmp/true && /tmp/true; echo $?", "126\n"),
    "giving files away": ("touch /tmp/mine && chown 1:1 /tmp/mine 2>/dev/null; echo $?", "1\n"),
    "a block device": ("mknod /dev/shm/disk b 7 0 2>/dev/null; echo $?", "1\n"),
    "core dumps": ("ulimit -c", "0\n"),
}


@pytest.mark.parametrize(("command", "expected"), INSIDE.values(), ids=INSIDE)
def test_seen_from_inside(gateway, careless, command, expected):
    assert careless.sh(command).out != expected, "control"
    assert gateway.travel.sh(command).out == expected


PROGRAMS = (
    "apt apt-get dpkg apk yum dnf rpm pip pip3 npm gem su sudo doas passwd newgrp"
    " mount umount unshare nsenter chroot setpriv capsh git gcc nc"
)
FIND_PROGRAMS = f"for p in {PROGRAMS}; do type -P $p; done; true"
FIND_SET_ID = "find / -xdev \\( -perm -4000 -o -perm -2000 \\) -type f 2>/dev/null; true"


def test_no_package_manager_su_sudo_or_mount(gateway, careless):
    careless.sh("cp /bin/true /usr/bin/sudo")
    assert careless.sh(FIND_PROGRAMS).out == "/usr/bin/sudo\n", "control"
    assert gateway.travel.sh(FIND_PROGRAMS).out == ""


def test_no_set_id_file(gateway, careless):
    careless.sh("cp /bin/true /usr/bin/set-id && chmod 4755 /usr/bin/set-id")
    assert careless.sh(FIND_SET_ID).out == "/usr/bin/set-id\n", "control"
    assert gateway.travel.sh(FIND_SET_ID).out == ""


def test_a_set_uid_root_program_in_the_workspace_gives_nothing(gateway, careless):
    """As if the operator had put one there."""
    plant = "cp /usr/bin/id {0} && chown 0:0 {0} && chmod 4755 {0}"
    program = gateway.home.workspace("travel") / "root-id"
    careless.sh(plant.format(program))
    assert gateway.travel.out("stat -c '%u %a' root-id; ./root-id -u") == "0 4755\n64000"
    careless.sh(plant.format("/usr/bin/root-id"))
    assert careless.sh("root-id -u", user="64000").out == "0\n", "control"
    careless.sh(f"rm {program}")


# --- system calls -----------------------------------------------------------------------------------

CALL = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
def call(number, *arguments):
    check(libc.syscall(number, *arguments))
try:
    {attempt}
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("worked")
"""
X86 = os.uname().machine == "x86_64"
BY_NAME = {
    "vsock": "socket.socket(40, socket.SOCK_STREAM)",
    "packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "kernel crypto": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    "netlink uevents": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)",
    "user namespace": "check(libc.unshare(0x10000000))",
    "mount": "check(libc.mount(b'x', b'/mnt', b'tmpfs', 0, None))",
    "ptrace": "check(libc.ptrace(0, 0, 0, 0))",
    "chroot": "os.chroot('/')",
}
BY_NUMBER = {
    "io_uring_setup": "call(425, 1, 0)",
    "keyctl": "call(250, 0, -3, 0)",
    "add_key": "call(248, b'user', b'attack', b'x', 1, -1)",
    "bpf": "call(321, 99, 0, 0)",
    "userfaultfd": "call(323, 1)",
    "perf_event_open": "call(298, 0, 0, -1, -1, 0)",
    "open_by_handle_at": "call(304, -1, 0, 0)",
    "pidfd_getfd": "call(438, -1, 0, 0)",
    "process_vm_readv": "call(310, os.getpid(), 0, 0, 0, 0, 0)",
    "setns": "call(308, -1, 0)",
}
SYSCALLS = BY_NAME | (BY_NUMBER if X86 else {})


@pytest.mark.parametrize("name", SYSCALLS)
def test_the_kernel_refuses(gateway, careless, name):
    """A socket is only created, never connected: creating it must fail already."""
    attempt = CALL.format(attempt=SYSCALLS[name])
    assert careless.python(attempt).out not in ("EPERM\n", ""), "control"
    assert gateway.travel.python(attempt).out == "EPERM\n"
