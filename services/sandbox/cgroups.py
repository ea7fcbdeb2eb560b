"""Reads which limits the host's kernel holds for a container: the files of its cgroup, version 1 or 2.

What the engine says of a container is what it was asked for. This is what became of it, also where nothing
inside shows it (gVisor).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PROC, ROOT = Path("/proc"), Path("/sys/fs/cgroup")
MOST_BYTES = 65536
NO_LIMIT = "no limit"


def limits(pid: int, *, proc: Path = PROC, root: Path = ROOT) -> dict[str, str]:
    """Bytes, processes and processors of the process's cgroup. OSError where they can't be read."""
    directories = places(_read(proc / str(pid) / "cgroup"), root)
    if (root / "cgroup.controllers").exists():
        quota, period = _read(directories["memory"] / "cpu.max").split()
        memory = _read(directories["memory"] / "memory.max")
        processes = _read(directories["memory"] / "pids.max")
    else:
        quota, period = (_read(directories["cpu"] / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        memory = _read(directories["memory"] / "memory.limit_in_bytes")
        processes = _read(directories["pids"] / "pids.max")
    processors = f"{int(quota) / int(period):.2f}" if quota.isdigit() else NO_LIMIT
    return {"memory": memory, "processes": processes, "processors": processors}


def places(text: str, root: Path) -> Mapping[str, Path]:
    """Where each controller's files are, by the text of /proc/PID/cgroup."""
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            found[name] = root / name / path.lstrip("/")
    # Version 2 has one directory for all of them, and names none. In a mixed system both are there.
    everything = found.get("", root)
    return {name: found.get(name, everything) for name in ("memory", "pids", "cpu")}


def _read(path: Path) -> str:
    with path.open() as file:
        return file.read(MOST_BYTES).strip()
