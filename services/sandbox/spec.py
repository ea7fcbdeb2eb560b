"""What an agent's container may do: config in, the engine's create request out. Pure.

This is the wall around the agent. Every flag is set here and nowhere else, each with the attacker
it stops; `tests/unit/sandbox/test_spec.py` asserts them one by one, `tests/docker/` on a running
container. The result is the JSON body of the Engine API's `POST /containers/create` (1.41), so
that nothing between this file and the engine can add to it or forget some of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

from beige.config import Mount, SandboxConfig
from beige.config.runtimes import is_gvisor
from beige.config.sizes import SHM_BYTES, files_fit, size_bytes
from beige.errors import ConfigError
from beige.messages.egress import RELAY_PORT, TOKEN_USER
from beige.paths import Home

UID = 64000
"""Exists in the image only: a file or process of an escaped agent belongs to nobody on the host."""
USER = f"{UID}:{UID}"
HOME_DIR = "/home/agent"
WORKSPACE = "/workspace"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
OWN_PROGRAMS = f"{HOME_DIR}/.local"
"""Profile open: where pip and npm put programs when the agent is not root."""
ROOT_CAPABILITIES = tuple(
    f"CAP_{name}" for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID")
)
"""What apt and dpkg need as root, and nothing of what reaches beyond the container's own files."""
PATH = f"/tools/bin:{SYSTEM_PATH}"

SOFT_OPEN_FILES = 1024
"""What programs expect that still use select(); they may raise it up to the limit."""
USER_PROCESSES = 32768
CPU_UNIT = 10**9

GVISOR_THREADS = 256

HOME_LABEL, AGENT_LABEL, SPEC_LABEL = "beige.home", "beige.agent", "beige.spec"


@dataclass(frozen=True)
class ContainerSpec:
    name: str
    agent: str
    body: dict[str, Any]
    digest: str
    """Of everything in `body` but this digest's own label: a container with the same is up to date."""


def home_digest(home: Home) -> str:
    """Names this installation on its engine: only containers with it are ever listed or removed."""
    return hashlib.sha256(os.fsencode(home.root)).hexdigest()


def container_name(home: Home, agent: str) -> str:
    return f"beige-{home_digest(home)[:8]}-{agent}"


def base_environment(agent: str, sandbox: SandboxConfig, token: str = "") -> dict[str, str]:
    """All a command finds in its environment, before the request's own: nothing of the host. `token`: its
    call token, which it also presents to the proxy."""
    found = {
        "PATH": PATH,
        "HOME": HOME_DIR,
        "LANG": "C.UTF-8",
        "DENO_DIR": "/tmp/deno",  # noqa: S108 - inside the container, its own tmpfs
        "DENO_NO_UPDATE_CHECK": "1",
        "BEIGE_AGENT": agent,
    }
    if sandbox.profile == "open":
        found |= {"PATH": f"/tools/bin:{OWN_PROGRAMS}/bin:{SYSTEM_PATH}", "NPM_CONFIG_PREFIX": OWN_PROGRAMS}
    if sandbox.root:
        found["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"
    return found | (proxy_environment(token) if sandbox.egress is not None else {})


def proxy_environment(token: str) -> dict[str, str]:
    """How programs find the way out: the relay in their own container."""
    user = f"{TOKEN_USER}:{token}@" if token else ""
    url = f"http://{user}127.0.0.1:{RELAY_PORT}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    here = "localhost,127.0.0.1,::1"
    return {name: url for name in names} | {"NO_PROXY": here, "no_proxy": here, "NODE_USE_ENV_PROXY": "1"}


def own_environment(agent: str) -> dict[str, str]:
    """For our own commands in the container: a plugin tool named like a program of the system (`cat`)
    must not come first (`test_a_tool_named_like_a_system_program_does_not_replace_it_for_us`)."""
    return {"PATH": SYSTEM_PATH, "HOME": HOME_DIR, "LANG": "C.UTF-8", "BEIGE_AGENT": agent}


def container_spec(
    agent: str, sandbox: SandboxConfig, home: Home, seccomp: str, *,
    executor: bool = True, mounts: tuple[Mount, ...] = (),
) -> ContainerSpec:  # fmt: skip
    """The agent's container. `seccomp`: the profile's JSON text. `mounts`: the operator's own, as
    `beige.config.mounts` let them through. `executor` False: the image has no /beige/init, the container
    only sleeps and commands come by `docker exec`; same walls."""
    _check(agent, sandbox)
    command = ["/beige/init"] if executor else ["sleep", "infinity"]
    body = {
        "Image": sandbox.image,
        "Entrypoint": command,
        "Cmd": [],
        "Hostname": agent.replace("_", "-").strip("-"),
        "WorkingDir": WORKSPACE,
        # No root inside: neither for the agent nor for whoever escapes. (`root`, for apt, is the operator's
        # own choice; it has few capabilities, and the same walls around it.)
        "User": "0:0" if sandbox.root else USER,
        # An agent that looks for the host's secrets: nothing of the gateway's environment goes in.
        "Env": [f"{name}={value}" for name, value in base_environment(agent, sandbox).items()],
        "NetworkDisabled": sandbox.network == "none",
        "Tty": False,
        "OpenStdin": False,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "Labels": {HOME_LABEL: home_digest(home), AGENT_LABEL: agent},
        "HostConfig": _host_config(sandbox, home, agent, seccomp, mounts, init=not executor),
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    body["Labels"] = {HOME_LABEL: home_digest(home), AGENT_LABEL: agent, SPEC_LABEL: digest}
    return ContainerSpec(container_name(home, agent), agent, body, digest)


def _host_config(
    sandbox: SandboxConfig, home: Home, agent: str, seccomp: str, mounts: tuple[Mount, ...], *, init: bool
) -> dict[str, Any]:
    memory = size_bytes(sandbox.memory)
    config: dict[str, Any] = {
        "Mounts": _mounts(home, agent, mounts),
        **_walls(seccomp),
        **_openings(sandbox),
        # Memory hog: killed in its own cgroup; swap would let it slow the whole host.
        "Memory": memory,
        "MemorySwap": memory,
        # Host short of memory: the agent dies before the services (the executor, at 500, after its
        # children at 1000, so that the container survives its commands).
        "OomScoreAdj": 500,
        "OomKillDisable": False,
        # Busy loop, fork bomb.
        "NanoCpus": int(sandbox.cpus * CPU_UNIT),
        # gVisor's own threads count, too.
        "PidsLimit": sandbox.pids + (GVISOR_THREADS if is_gvisor(sandbox.runtime) else 0),
        # Filling memory through files: tmpfs is bounded in bytes and inodes, see _check.
        "ShmSize": SHM_BYTES,
        "Tmpfs": _tmpfs(sandbox),
        "Ulimits": [
            # Descriptor exhaustion.
            {
                "Name": "nofile",
                "Soft": min(SOFT_OPEN_FILES, sandbox.open_files),
                "Hard": sandbox.open_files,
            },
            # The kernel counts nproc per uid over all containers: low, it would let one agent's fork
            # bomb starve the others. PidsLimit is the wall; this one only bounds the sum.
            {"Name": "nproc", "Soft": USER_PROCESSES, "Hard": USER_PROCESSES},
            # A core dump could write another process's memory into the workspace.
            {"Name": "core", "Soft": 0, "Hard": 0},
            # One file that fills the host's disk (the sum: workspaceSize).
            {"Name": "fsize", "Soft": size_bytes(sandbox.file_size), "Hard": size_bytes(sandbox.file_size)},
        ],
        # Filling the host's disk through the container's log.
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
        # Ours to start again, with the config of the day.
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        # The executor reaps; only `sleep` needs help with orphans.
        "Init": init,
    }
    if sandbox.runtime is not None:
        config["Runtime"] = sandbox.runtime
    return config


def _tmpfs(sandbox: SandboxConfig) -> dict[str, str]:
    size = size_bytes(sandbox.tmp_size)
    if sandbox.profile == "open":
        # Installers build and run in /tmp. HOME is in the root layer: packages there are no memory.
        return {"/tmp": f"rw,nosuid,nodev,exec,size={size},mode=1777,nr_inodes=256k"}  # noqa: S108
    return {
        # noexec: /tmp is where exploits drop what they run.
        "/tmp": f"rw,nosuid,nodev,noexec,size={size},mode=1777,nr_inodes=16k",  # noqa: S108
        HOME_DIR: (
            f"rw,nosuid,nodev,size={size_bytes(sandbox.home_size)},"
            f"mode=0700,uid={UID},gid={UID},nr_inodes=32k"
        ),
    }


def _openings(sandbox: SandboxConfig) -> dict[str, Any]:
    """What the profile open opens in the walls: its root layer, which goes with the container; and what the
    operator took away by name: for an agent that is root inside, the few capabilities that installing
    packages takes; the network, which is logged each time and told by `beige doctor`."""
    if sandbox.profile != "open":
        return {}
    return {
        "ReadonlyRootfs": False,
        "CapAdd": list(ROOT_CAPABILITIES) if sandbox.root else [],
        "NetworkMode": sandbox.network,
    }


def _walls(seccomp: str) -> dict[str, Any]:
    return {
        # Exfiltration, attacks on the host's and the neighbours' services: no interface but lo. What
        # namespaces do not cover (AF_VSOCK) the seccomp profile refuses.
        "NetworkMode": "none",
        # Changing the executor, the tool client or a program that a later command runs.
        "ReadonlyRootfs": True,
        # Everything root could do, for an agent that gets to be root.
        "CapDrop": ["ALL"],
        "CapAdd": [],
        "Privileged": False,
        "SecurityOpt": [
            # setuid programs and file capabilities.
            "no-new-privileges:true",
            # Kernel attack surface: io_uring, ptrace, user namespaces, keyrings, foreign sockets.
            f"seccomp={seccomp}",
        ],
        # Shared memory and process ids of the host or of another agent.
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        "Devices": [],
        "GroupAdd": [],
        "VolumesFrom": None,
        "Binds": [],
        "Links": [],
        "PortBindings": {},
        "PublishAllPorts": False,
    }


def _mounts(home: Home, agent: str, extra: tuple[Mount, ...]) -> list[dict[str, Any]]:
    """All the container sees of the host. Mount objects, not `a:b:ro` strings: a home whose path
    holds a colon can't turn into other mounts or flags."""
    return [
        _bind(home.workspace(agent), WORKSPACE, read_only=False),
        # Tampering with launchers, documentation or sockets, to fool a later command.
        _bind(home.launchers(agent), "/tools/bin", read_only=True),
        _bind(home.packages(agent), "/tools/packages", read_only=True),
        # The agent's own directory alone: another agent's socket would be another agent's identity.
        _bind(home.agent_sockets(agent), "/run/beige", read_only=True),
        # The operator's own holes; nothing comes through that was not judged (beige/config/mounts.py).
        *(_extra(mount) for mount in extra),
    ]


def _bind(source: str | os.PathLike[str], target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": os.fspath(source),
        "Target": target,
        "ReadOnly": read_only,
        # Mounts made later on the host do not appear inside.
        "BindOptions": {"Propagation": "rprivate"},
    }


def _extra(mount: Mount) -> dict[str, Any]:
    bind = _bind(mount.source, mount.target, read_only=mount.read_only)
    # Without what is mounted below it: engines before 25 leave that writable in a read-only mount.
    bind["BindOptions"]["NonRecursive"] = True
    return bind


def _check(agent: str, sandbox: SandboxConfig) -> None:
    where = f"agents.{agent}.sandbox"
    if sandbox.root and sandbox.profile != "open":
        raise ConfigError(f"{where}.root", "is only for the profile open")
    if sandbox.network != "none" and sandbox.profile != "open":
        raise ConfigError(f"{where}.network", "is only for the profile open")
    if not files_fit(
        sandbox.memory, sandbox.tmp_size, "0" if sandbox.profile == "open" else sandbox.home_size
    ):
        raise ConfigError(f"{where}.memory", "is too little for tmpSize and homeSize")


def ownership_spec(home: Home, agent: str, image: str, seccomp: str) -> dict[str, Any]:
    """A container that gives the workspace to UID and ends: for a gateway that is not root. It has
    CHOWN, no network and nothing but the workspace, and runs before any agent could write there."""
    walls = _walls(seccomp)
    walls["CapAdd"] = ["CHOWN"]
    return {
        "Image": image,
        "Entrypoint": ["chown", "-hR", USER, WORKSPACE],
        "Cmd": [],
        "WorkingDir": "/",
        "User": "0:0",
        "NetworkDisabled": True,
        "Labels": {HOME_LABEL: home_digest(home)},
        "HostConfig": {
            **walls,
            "Mounts": [_bind(home.workspace(agent), WORKSPACE, read_only=False)],
            "Memory": 64 * 1024**2,
            "MemorySwap": 64 * 1024**2,
            "PidsLimit": 16,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
        },
    }
