"""What `beige doctor` says about sandboxes: which runtime each agent gets, whose workspace is bounded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from beige.cli.finding import Finding
from beige.config import Config
from beige.config.runtimes import FILTER, SOCKETS, is_gvisor, runtime_for
from beige.config.sizes import size_bytes
from beige.paths import Home

QUOTA_TOOLS = ("mkfs.ext4", "e2fsck", "resize2fs", "losetup", "mount")
ARGUMENTS = f'set runtimeArgs: ["--network=none", "{SOCKETS[0]}", "{FILTER}"] in daemon.json'
QUOTA_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def sandboxes(home: Home, config: Config, listed: Mapping[str, Any] | None) -> Iterator[Finding]:
    """`listed`: the engine's runtimes, None if it did not say."""
    if listed is not None:
        yield from _runtimes(config, listed)
    yield from _workspaces(home, config)
    yield from _root_layers(config)


def _runtimes(config: Config, listed: Mapping[str, Any]) -> Iterator[Finding]:
    for name, agent in config.agents.items():
        chosen = runtime_for(agent.sandbox, listed)
        text = f"{name}: {chosen.name or 'default'} ({chosen.why})"
        if chosen.name is not None and chosen.name not in listed:
            fix = f"add it to the engine's daemon.json, or remove agents.{name}.sandbox.runtime"
            yield Finding("runtime", "broken", f"{text}, which the engine does not list", fix)
        elif "lack" in chosen.why:
            yield Finding("runtime", "broken" if is_gvisor(chosen.name) else "warning", text, ARGUMENTS)
        elif not chosen.filtered:
            text += f'; its runtimeArgs lack "{FILTER}": beige\'s seccomp profile does not hold inside'
            yield Finding("runtime", "warning", text, ARGUMENTS)
        else:
            yield Finding("runtime", "ok", text)


def _workspaces(home: Home, config: Config) -> Iterator[Finding]:
    sizes = {name: agent.sandbox.workspace_size for name, agent in config.agents.items()}
    free = [name for name, size in sizes.items() if size is None]
    bounded = {name: size_bytes(size) for name, size in sizes.items() if size is not None}
    if free:
        yield Finding("workspaces", "ok", f"no quota for {', '.join(free)} (agents.*.sandbox.workspaceSize)")
    if not bounded:
        return
    missing = [tool for tool in QUOTA_TOOLS if not shutil.which(tool, path=QUOTA_PATH)]
    names = ", ".join(bounded)
    if os.geteuid() != 0:
        text = f"workspaceSize of {names} needs root: their containers are not made"
        yield Finding("workspaces", "broken", text, "run beige as root, or remove workspaceSize")
    elif missing:
        text = f"workspaceSize of {names} needs {', '.join(missing)}: their containers are not made"
        yield Finding("workspaces", "broken", text, "install e2fsprogs and util-linux")
    else:
        yield _room(home, names, sum(bounded.values()))


def _root_layers(config: Config) -> Iterator[Finding]:
    """Docker bounds them on few disks alone (overlay2 on xfs with pquota, btrfs, zfs): beige does not ask."""
    names = [name for name, agent in config.agents.items() if agent.sandbox.profile == "open"]
    if names:
        text = (
            f"no quota for what {', '.join(names)} (profile open) write outside the workspace, on the "
            "engine's disk; `beige sandbox show` has its size"
        )
        yield Finding("root layers", "ok", text)


def _room(home: Home, names: str, wanted: int) -> Finding:
    """Images grow as they are filled: together they may promise more than there is."""
    there = shutil.disk_usage(home.root).free
    taken = sum(image.stat().st_blocks * 512 for image in (home.data / "workspaces").glob("*.ext4"))
    text = f"quota for {names}: {wanted >> 20} MiB together, {(there + taken) >> 20} MiB there"
    if wanted > there + taken:
        return Finding("workspaces", "warning", text, "lower workspaceSize, or free some disk space")
    return Finding("workspaces", "ok", text)
