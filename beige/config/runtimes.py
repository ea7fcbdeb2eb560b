"""Decides which of the engine's runtimes a container gets: gVisor for a sealed one, where it can be had.

gVisor's kernel answers the agent's system calls instead of the host's. The operator's word counts more:
`sandbox.runtime: "runc"` declines it. A gVisor whose sockets can't work is not taken, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from beige.config.models import SandboxConfig

GVISOR = "runsc"
SOCKETS = ("--host-uds=open", "--host-uds=all")
"""Without one of them nothing in the container can connect to a socket of the host's: the executor reports
to nobody, and tools have no gateway."""
FILTER = "--oci-seccomp"
"""With it beige's seccomp profile holds inside gVisor, too; without it gVisor's kernel answers every call."""


@dataclass(frozen=True)
class Runtime:
    name: str | None
    """None: the engine's default."""
    why: str
    lacks: str = ""
    """What no container can do without, as the engine describes the runtime; empty: nothing known."""
    filtered: bool = True
    """Does beige's seccomp profile hold inside?"""


def is_gvisor(name: str | None) -> bool:
    return name is not None and name.startswith(GVISOR)


def runtime_for(sandbox: SandboxConfig, listed: Mapping[str, Any]) -> Runtime:
    """`listed`: `Runtimes` of the engine's `GET /info`."""
    if sandbox.runtime is not None:
        lacks = _lacks(sandbox.runtime, listed)
        why = f"configured: {lacks}" if lacks else "configured"
        return Runtime(sandbox.runtime, why, lacks, _filtered(sandbox.runtime, listed))
    if sandbox.profile != "sealed":
        return Runtime(None, "the engine's default")
    if GVISOR not in listed:
        return Runtime(None, "the engine's default; it lists no gVisor (runsc)")
    lacks = _lacks(GVISOR, listed)
    if lacks:
        return Runtime(None, f"the engine's default; gVisor is not taken: {lacks}")
    why = 'gVisor, since the engine lists it (runtime: "runc" declines it)'
    return Runtime(GVISOR, why, filtered=_filtered(GVISOR, listed))


def _lacks(name: str, listed: Mapping[str, Any]) -> str:
    known = _arguments(name, listed)
    if not is_gvisor(name) or known is None or known & set(SOCKETS):
        return ""
    return f'its runtimeArgs lack "{SOCKETS[0]}", without which sockets do not work'


def _filtered(name: str, listed: Mapping[str, Any]) -> bool:
    return not is_gvisor(name) or FILTER in (_arguments(name, listed) or ())


def _arguments(name: str, listed: Mapping[str, Any]) -> set[str] | None:
    """None: the engine describes it in another form, or not at all."""
    entry = listed.get(name)
    return set(entry.get("runtimeArgs") or ()) if isinstance(entry, Mapping) else None
