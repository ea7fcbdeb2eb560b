"""The probes from outside: one flag of the running container each, as the engine tells it. Pure.

Nothing in a container can influence these. The walls are written out once more here instead of being
taken from `spec.py`: a flag that got lost there is missed here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from services.sandbox.probes import Facts, Outside

Inspected = Mapping[str, Any]
NOTHING = "nothing"
"""Not `none`, which is the name of a network mode."""
MASKED = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware")
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def _text(value: Any) -> str:
    """One form for what the engine leaves out, sets to null or to an empty value."""
    if value in (None, "", [], {}):
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def host(name: str) -> Callable[[Inspected], str]:
    return lambda container: _text(container["HostConfig"].get(name))


def config(name: str) -> Callable[[Inspected], str]:
    return lambda container: _text(container["Config"].get(name))


def wanted(name: str) -> Callable[[Facts], str]:
    return lambda facts: _text(facts.host[name])


def addresses(container: Inspected) -> str:
    networks = container["NetworkSettings"]["Networks"].values()
    return " ".join(n[k] for n in networks for k in ("IPAddress", "GlobalIPv6Address") if n[k]) or NOTHING


def networks(container: Inspected) -> str:
    return " ".join(sorted(container["NetworkSettings"]["Networks"])) or "none"


def published(container: Inspected) -> str:
    settings = container["HostConfig"]
    ports = [settings.get("PortBindings"), container["NetworkSettings"].get("Ports")]
    return NOTHING if not any(ports) and not settings.get("PublishAllPorts") else "published"


def no_new_privileges(container: Inspected) -> str:
    options = container["HostConfig"]["SecurityOpt"] or []
    return "set" if {"no-new-privileges", "no-new-privileges:true"} & set(options) else "not set"


def seccomp(settings: Mapping[str, Any]) -> str:
    """The profile's digest: its text is 10 KiB."""
    for option in settings["SecurityOpt"] or []:
        if option.startswith("seccomp="):
            profile = option.removeprefix("seccomp=")
            return profile if profile == "unconfined" else digest(profile)
    return "the engine's default"


def digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def other_options(container: Inspected) -> str:
    known = ("no-new-privileges", "seccomp=")
    return _text([o for o in container["HostConfig"]["SecurityOpt"] or [] if not o.startswith(known)])


def mounts(container: Inspected) -> str:
    return _mounted((m["Source"], m["Destination"], m["RW"]) for m in container["Mounts"])


def wanted_mounts(facts: Facts) -> str:
    return _mounted((m["Source"], m["Target"], not m["ReadOnly"]) for m in facts.host["Mounts"])


def _mounted(found: Any) -> str:
    rows = sorted(f"{to} from {source} {'rw' if rw else 'ro'}" for source, to, rw in found)
    return "; ".join(rows) or NOTHING


def propagation(container: Inspected) -> str:
    return " ".join(sorted({m.get("Propagation") or NOTHING for m in container["Mounts"]})) or NOTHING


def missing(name: str, paths: tuple[str, ...]) -> Callable[[Inspected], str]:
    """Of these paths, those that the engine does not protect."""

    def look(container: Inspected) -> str:
        return " ".join(sorted(set(paths) - set(container["HostConfig"][name] or []))) or NOTHING

    return look


def limits(settings: Mapping[str, Any]) -> str:
    found = settings.get("Ulimits") or []
    return " ".join(sorted(f"{one['Name']}={one['Soft']}:{one['Hard']}" for one in found)) or NOTHING


def devices(container: Inspected) -> str:
    names = ("Devices", "DeviceRequests", "DeviceCgroupRules")
    return " ".join(name for name in names if container["HostConfig"].get(name)) or NOTHING


def foreign_variables(facts_names: frozenset[str]) -> Callable[[Inspected], str]:
    def look(container: Inspected) -> str:
        names = {entry.partition("=")[0] for entry in container["Config"]["Env"] or []}
        return " ".join(sorted(names - facts_names)) or NOTHING

    return look


OUR_VARIABLES = frozenset(
    "PATH HOME LANG DENO_DIR DENO_NO_UPDATE_CHECK BEIGE_AGENT PYTHONDONTWRITEBYTECODE".split()
)
"""The last one is the image's."""


def more_variables(facts: Facts) -> str:
    """Those of the profile open and of egress."""
    return " ".join(sorted(set(facts.environment) - OUR_VARIABLES)) or NOTHING


def runtime(container: Inspected) -> str:
    return _text(container["HostConfig"].get("Runtime"))


def wanted_runtime(facts: Facts) -> str:
    """Without one in the configuration, the engine's default: then this probe can't be wrong."""
    return str(facts.host.get("Runtime") or facts.runtime or NOTHING)


def confinement(container: Inspected) -> str:
    """A host without AppArmor says nothing, or `docker-default`; what it must not say is this."""
    return "unconfined" if container.get("AppArmorProfile") == "unconfined" else "not unconfined"


def kernel_limits(container: Inspected) -> str:
    """`Cgroup` is `cgroups.limits`, not the engine's."""
    return _text(container["Cgroup"])


def wanted_limits(facts: Facts) -> str:
    processors = f"{facts.host['NanoCpus'] / 10**9:.2f}"
    memory, processes = facts.host["Memory"], facts.host["PidsLimit"]
    return _text({"memory": str(memory), "processes": str(processes), "processors": processors})


def state(container: Inspected) -> str:
    found = container["State"]
    return f"{found['Status']}{', killed for its memory' if found.get('OOMKilled') else ''}"


OUTSIDE: tuple[Outside, ...] = (
    Outside("state", "it runs, and its executor was not killed for its memory", state, "running"),
    Outside("network-mode", "no network namespace with a way out", host("NetworkMode"), "none"),
    Outside("networks", "it hangs on no network", networks, "none"),
    Outside("addresses", "it has no address", addresses, NOTHING),
    Outside("ports", "no port of the host leads to it", published, NOTHING),
    Outside("extra-hosts", "no names of the host's neighbours", host("ExtraHosts"), NOTHING),
    Outside("links", "no link to another container", host("Links"), NOTHING),
    Outside("root-flag", "the root file system is read-only", host("ReadonlyRootfs"), "true"),
    Outside("cap-drop", "all capabilities are dropped", host("CapDrop"), '["ALL"]'),
    Outside("cap-add", "no capability is added", host("CapAdd"), NOTHING),
    Outside("privileged", "not privileged", host("Privileged"), "false"),
    Outside("nnp-flag", "no-new-privileges", no_new_privileges, "set"),
    Outside("seccomp-profile", "beige's own seccomp profile, byte for byte",
            lambda c: seccomp(c["HostConfig"]), lambda facts: seccomp(facts.host)),
    Outside("security-options", "no other option that could loosen it", other_options, NOTHING),
    Outside("apparmor", "AppArmor, where the host has it, is not switched off", confinement,
            "not unconfined"),
    Outside("user", "a uid that the host does not have", config("User"), "64000:64000"),
    Outside("groups", "no group of the host's", host("GroupAdd"), NOTHING),
    Outside("ipc", "shared memory of its own", host("IpcMode"), "private"),
    Outside("pid", "process ids of its own", host("PidMode"), NOTHING),
    Outside("uts", "a host name of its own", host("UTSMode"), NOTHING),
    Outside("userns", "the engine's user namespace setting is not overruled", host("UsernsMode"), NOTHING),
    Outside("devices", "no device is given to it", devices, NOTHING),
    Outside("mounts", "exactly the four mounts, only the workspace writable, and the configured ones", mounts,
            wanted_mounts),
    Outside("propagation", "later mounts of the host do not appear inside", propagation, "rprivate"),
    Outside("volumes-from", "no volume of another container", host("VolumesFrom"), NOTHING),
    Outside("binds", "no mount besides", host("Binds"), NOTHING),
    Outside("masked", "these files of /proc and /sys are masked: " + " ".join(MASKED),
            missing("MaskedPaths", MASKED), NOTHING),
    Outside("read-only-paths", "these of /proc are read-only: " + " ".join(READ_ONLY),
            missing("ReadonlyPaths", READ_ONLY), NOTHING),
    Outside("sysctls", "no kernel setting is changed for it", host("Sysctls"), NOTHING),
    Outside("memory-limit", "memory is bounded", host("Memory"), wanted("Memory")),
    Outside("swap-limit", "it can't swap", host("MemorySwap"), wanted("Memory")),
    Outside("cpu-limit", "processor time is bounded", host("NanoCpus"), wanted("NanoCpus")),
    Outside("pids-limit", "processes are bounded", host("PidsLimit"), wanted("PidsLimit")),
    Outside("host-limits", "the host's kernel holds these limits", kernel_limits, wanted_limits),
    Outside("ulimits", "files, processes, core dumps and file sizes are bounded",
            lambda c: limits(c["HostConfig"]), lambda facts: limits(facts.host)),
    Outside("oom", "the kernel may kill it, and before the host's services", host("OomScoreAdj"), "500"),
    Outside("tmpfs", "the /tmp and HOME in memory are bounded, nosuid and nodev", host("Tmpfs"),
            wanted("Tmpfs")),
    Outside("shm", "shared memory is bounded", host("ShmSize"), wanted("ShmSize")),
    Outside("log", "its log can't fill the disk", host("LogConfig"), wanted("LogConfig")),
    Outside("restart", "nobody but beige starts it again", lambda c: c["HostConfig"]["RestartPolicy"]["Name"],
            "no"),
    Outside("environment-names", "no variable of the host's in its definition",
            foreign_variables(OUR_VARIABLES), more_variables),
    Outside("first-process", "it starts beige's executor and nothing else",
            lambda c: _text([*(c["Config"]["Entrypoint"] or []), *(c["Config"]["Cmd"] or [])]),
            lambda facts: _text(facts.body["Entrypoint"])),
    Outside("specification", "made from today's configuration",
            lambda c: _text((c["Config"]["Labels"] or {}).get("beige.spec")),
            lambda facts: str(facts.body["Labels"]["beige.spec"])),
    Outside("runtime", "the runtime that the configuration names", runtime, wanted_runtime),
)  # fmt: skip
