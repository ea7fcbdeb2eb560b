"""What one probe of a container is, and what its answer means. Pure: texts in, a verdict out.

A probe names one exact text that it must see, never "no output" or "some error": a probe whose command
could not run, was killed or said something else has failed. The tables are in `probes_inside.py` (commands
that run as the agent's would) and `probes_outside.py` (what the engine says about the running container).
What each of them says about a container without the walls is in `tests/docker/test_sandbox_verify.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "skip"]
SEEN_CHARACTERS = 1000
"""Kept of what a container says, which may be anything."""
BASH = "/bin/bash"
SYSTEM_PATH = "PATH=/usr/local/bin:/usr/bin:/bin; "
"""Not a program of the agent's or of a plugin, when a probe wants one of the system's."""


@dataclass(frozen=True)
class Facts:
    """What the container should be: the expectations that are not the same for every agent."""

    body: Mapping[str, Any]
    """The engine's create request, of `spec.py`."""
    environment: Mapping[str, str]
    """Of the agent's commands."""
    executor: bool
    """False: the container only sleeps, commands come by `docker exec`."""
    runtime: str
    """The engine's word: `runc`, `runsc`, ..."""
    home: str
    """beige's home on the host."""
    run: str
    """The directory of all agents' sockets on the host."""
    profile: str = "sealed"
    root: bool = False
    """Commands are root inside (profile open)."""
    network: str = "none"
    filtered: bool = True
    """beige's seccomp profile holds inside."""

    @property
    def gvisor(self) -> bool:
        return self.runtime.startswith("runsc")

    @property
    def host(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.body["HostConfig"]
        return config

    def tmpfs_bytes(self, path: str) -> int:
        """0 if the specification bounds it not at all."""
        found = re.search(r"size=(\d+)", self.host["Tmpfs"][path])
        return int(found[1]) if found else 0


Expected = str | Callable[[Facts], str]


@dataclass(frozen=True)
class LeftOut:
    """What is expected of a probe that says nothing here: why."""

    reason: str


Changes = Mapping[str, Expected | LeftOut]
"""Probe's id to what is expected of it instead, in another profile or kernel (`probes_open.py`,
`probes_gvisor.py`)."""
NO_CHANGES: Changes = {}


@dataclass(frozen=True)
class Inside:
    """A bash script that runs as a command of the agent and prints `expected`. $1: the home's path, $2: the
    run directory's; $3, $4, $5: how many processes, bytes of memory and of /tmp the agent may have."""

    id: str
    shows: str
    script: str
    expected: Expected
    executor: bool = False
    """It is about /beige/init, and says nothing of an image without."""
    abuse: bool = False
    """It uses a limit up, so that whatever else runs in the container may suffer."""

    side: Literal["inside"] = "inside"

    def argv(self, facts: Facts) -> tuple[str, ...]:
        limits = (facts.host["PidsLimit"], facts.host["Memory"], facts.tmpfs_bytes("/tmp"))  # noqa: S108
        return (BASH, "-c", SYSTEM_PATH + self.script, "verify", facts.home, facts.run, *map(str, limits))


@dataclass(frozen=True)
class Outside:
    """A look at the engine's description (`docker inspect`) of the running container."""

    id: str
    shows: str
    look: Callable[[Mapping[str, Any]], str]
    expected: Expected
    executor: bool = False
    abuse: bool = False

    side: Literal["outside"] = "outside"


Probe = Inside | Outside


@dataclass(frozen=True)
class Verdict:
    status: Status
    expected: str
    seen: str
    """What was seen; of a probe that was left out, why."""


def expectation(probe: Probe, facts: Facts, changes: Changes = NO_CHANGES) -> str:
    expected = changes.get(probe.id, probe.expected)
    assert not isinstance(expected, LeftOut)
    return expected if isinstance(expected, str) else expected(facts)


def left_out(probe: Probe, facts: Facts, changes: Changes = NO_CHANGES) -> str:
    """Why this probe says nothing about this container; empty: it does."""
    if isinstance(change := changes.get(probe.id), LeftOut):
        return change.reason
    if probe.executor and not facts.executor:
        return "the image has no executor"
    return ""


def judge_inside(
    probe: Inside, facts: Facts, exit_code: int, stdout: bytes, changes: Changes = NO_CHANGES
) -> Verdict:
    """Whatever follows what was expected, a different end of line included, is a failure."""
    seen = stdout.decode("utf-8", "replace").removesuffix("\n")
    shown = seen if exit_code == 0 else f"{seen} [exit code {exit_code}]".lstrip()
    return _judged(expectation(probe, facts, changes), shown)


def judge_outside(
    probe: Outside, facts: Facts, inspected: Mapping[str, Any], changes: Changes = NO_CHANGES
) -> Verdict:
    """An engine that describes a container in another form than we know is no reason to trust it."""
    try:
        seen = probe.look(inspected)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        seen = f"not in the engine's answer ({type(error).__name__})"
    return _judged(expectation(probe, facts, changes), seen)


def _judged(expected: str, seen: str) -> Verdict:
    return Verdict("pass" if seen == expected else "fail", expected, seen[:SEEN_CHARACTERS])


def chosen(probes: Sequence[Probe], *, abuse: bool) -> tuple[Probe, ...]:
    """Those to run: the ones that use limits up come last, and only if asked for."""
    gentle = tuple(probe for probe in probes if not probe.abuse)
    return gentle + tuple(probe for probe in probes if probe.abuse and abuse)
