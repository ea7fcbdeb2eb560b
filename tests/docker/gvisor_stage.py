"""The house of test_gvisor.py: its runtimes, its agents, and what an agent may try against the executor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.simulator.internet import answer, read_head

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
RUNSC = CACHE / "beige/runsc/runsc"
"""Where scripts/runsc.sh puts it."""
RUNTIMES = {
    name: {"path": str(RUNSC), "runtimeArgs": ["--network=none", *more]}
    for name, more in {
        "runsc": ("--host-uds=open", "--oci-seccomp"),
        "runsc-deaf": ("--oci-seccomp",),  # no socket works
        "runsc-loose": ("--host-uds=open",),  # beige's seccomp profile does not hold
    }.items()
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


def agents(make, image, without_executor, allowed):
    """`make`: of an image and settings. `allowed`: the place that those with egress may reach."""
    way = {"egress": {"allow": [allowed]}}
    gvisor = {"profile": "open", "runtime": "runsc"}
    return {
        "travel": make(image),  # says nothing of a runtime
        "plain": make(image, runtime="runc"),  # declines it: the control
        "narrow": make(image, **way),
        "wide": make(image, **gvisor, **way),
        "root": make(image, **gvisor, root=True),
        "full": make(image, workspaceSize="16m"),
        "deaf": make(image, runtime="runsc-deaf"),
        "loose": make(image, runtime="runsc-loose"),
        "foreign": make(without_executor),
    }


HELLO = 'struct.pack("<IBI", 13, 20, 0) + struct.pack("<II", 1, 1)'
IMPOSTOR = f"""
import socket, struct
s = socket.socket(socket.AF_UNIX)
s.settimeout(10)
s.connect("/run/beige/exec.sock")
try:
    s.sendall({HELLO})
    answer = s.recv(1)
except (BrokenPipeError, ConnectionResetError):
    answer = b""
print("refused" if answer == b"" else "admitted")
"""
USURPER = f"""
import os, signal, socket, struct, time
os.kill(1, signal.SIGSTOP)
open("stopped", "w").close()
end = time.monotonic() + 120
while time.monotonic() < end:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(10)
    try:
        s.connect("/run/beige/exec.sock")
        s.sendall({HELLO})
        if s.recv(1):
            open("admitted", "w").close()
            time.sleep(60)
    except OSError:
        time.sleep(0.005)
"""
"""Stops the executor and waits for its place."""
