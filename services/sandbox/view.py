"""Compares a container's specification with what the engine says of it, flag by flag. Pure.

The engine adds what nobody set (masked paths, its defaults); it leaves out what is zero. So values are
compared without zeros, and a flag that only the engine has is shown where it says something: as a
difference only if it could open a wall.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from beige.messages.sandbox import SandboxFlag
from services.sandbox.spec import AGENT_LABEL, HOME_LABEL, SPEC_LABEL

TOP = "HostConfig"
HARMLESS = frozenset({
    *(f"HostConfig.{name}" for name in ("CgroupnsMode", "ConsoleSize", "Isolation", "MaskedPaths")),
    *("HostConfig.ReadonlyPaths", "HostConfig.Runtime", "StopSignal", "Env.PYTHONDONTWRITEBYTECODE"),
})  # fmt: skip
"""Set by every engine for every container, or by our image; shown, and no difference. What of them is a
wall, verify knows."""
OURS = frozenset({f"Labels.{name}" for name in (HOME_LABEL, AGENT_LABEL, SPEC_LABEL)})
_SPLIT = ("Env", "Labels", "Tmpfs")
_ELSEWHERE = frozenset({"Image", "Hostname", "Domainname", "OnBuild"})


def flags(body: Mapping[str, Any], inspected: Mapping[str, Any] | None) -> list[SandboxFlag]:
    """All flags of the create request, then what else the engine has. `inspected` None: no container."""
    wanted = _flat(body)
    if inspected is None:
        return [SandboxFlag(name, value) for name, value in wanted.items()]
    engine = _flat({**inspected["Config"], TOP: inspected[TOP]})
    rows = [_row(name, wanted[name], engine.get(name)) for name in wanted]
    rows += [
        SandboxFlag(name, None, value, differs=not _harmless(name))
        for name, value in engine.items()
        if name not in wanted and _normal(value) is not None and name not in _ELSEWHERE
    ]
    return rows


def _row(name: str, wanted: Any, engine: Any) -> SandboxFlag:
    return SandboxFlag(name, wanted, engine, differs=_normal(wanted) != _normal(engine))


def _harmless(name: str) -> bool:
    """Labels come from the image too; none but ours means anything."""
    return name in HARMLESS or (name.startswith("Labels.") and name not in OURS)


def _flat(body: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in body.items():
        if name == TOP:
            found |= {f"{TOP}.{inner}": one for inner, one in _flat(value).items()}
        elif name in _SPLIT:
            found |= {f"{name}.{key}": one for key, one in _pairs(value).items()}
        else:
            found[name] = [_short(one) for one in value] if name == "SecurityOpt" and value else value
    return found


def _pairs(value: Any) -> dict[str, str]:
    if isinstance(value, Mapping):
        return dict(value)
    return {name: text for name, _, text in (entry.partition("=") for entry in value or [])}


def _short(option: str) -> str:
    """A seccomp profile is 10 KiB of JSON: its digest tells whether it is ours."""
    if option.startswith("seccomp={"):
        return f"seccomp=sha256:{hashlib.sha256(option.removeprefix('seccomp=').encode()).hexdigest()}"
    return option


def _normal(value: Any) -> Any:
    """Without what the engine does not tell apart from nothing; None if that is all."""
    if isinstance(value, Mapping):
        kept = {key: _normal(one) for key, one in value.items()}
        return {key: one for key, one in kept.items() if one is not None} or None
    if isinstance(value, list | tuple):
        return sorted((_normal(one) for one in value), key=repr) or None
    return value or None
