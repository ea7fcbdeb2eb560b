"""Becomes one process of the house, with exactly the environment written down for it.

    python -P -m beige.supervisor.launch <program> <instance>

supervisord hands its own environment to everything it starts, and what a process was started with
stays readable in /proc/<pid>/environ. So supervisord itself is started with nothing worth reading, and
this launcher replaces itself by the program with the variables in run/env/<program>.json (0600).
Stops: a process in hostile hands that reads another's key from its environment
(`tests/processes/test_supervised.py`). Imports little: every start of a process pays for it.
"""

import ctypes
import json
import os
import signal
import sys

MODULES = {
    "broker": "broker",
    "policy": "services.policy",
    "audit": "services.audit",
    "sandbox": "services.sandbox",
    "tools": "services.tools",
    "egress": "services.egress",
    "bridge": "socket_bridge",
    "llm": "services.llm",
    "tap": "services.tap",
    "gateway": "services.gateway",
    "channels": "services.channels",
}
"""Program name to what `python -m` starts, in the order in which they start."""

ENV_DIRECTORY = "BEIGE_ENV_DIR"
"""The variable by which supervisord's environment names the directory run/env."""

_PR_SET_PDEATHSIG = 1
"""<linux/prctl.h>; survives execve."""


def main(program: str, instance: str) -> None:
    path = os.path.join(os.environ[ENV_DIRECTORY], f"{program}.json")
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        environment: dict[str, str] = json.load(file)
    environment["BEIGE_INSTANCE"] = str(int(instance))
    _end_with_supervisord()
    command = [sys.executable, "-P", "-m", MODULES[program]]
    os.execve(command[0], command, environment)  # noqa: S606 - a fixed command, no shell


def _end_with_supervisord() -> None:
    """Ask the kernel for a SIGTERM when supervisord dies, so that not even its kill -9 leaves processes
    that nobody watches. Linux only; elsewhere `beige down` finds them."""
    if sys.platform != "linux":
        return
    supervisord = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisord:
        raise SystemExit("supervisord is gone")


if __name__ == "__main__":
    main(*sys.argv[1:3])
