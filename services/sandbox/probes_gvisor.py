"""What gVisor changes about the probes: its kernel is not the host's, and some of it looks different. Pure.

With `--oci-seccomp` what the profile refuses is refused here as well. Without it (`beige doctor` warns)
gVisor's own kernel answers those calls: some work, in a kernel of the agent's own.
"""

from __future__ import annotations

from services.sandbox.probes import Changes, Facts, LeftOut

_OUTSIDE = LeftOut("its /sys/fs/cgroup shows no limit: they are around the sandbox, where host-limits looks")
_GVISOR: Changes = {
    # The two more are of gVisor's own making; behind them is its kernel, not the host's.
    "device-nodes": "/dev/full /dev/fuse /dev/net/tun /dev/null /dev/random /dev/tty /dev/urandom /dev/zero",
    "executor-private": LeftOut(
        "the executor's environment can be read; environment-names tells what is in it"
    ),
    **dict.fromkeys(("cgroup-memory", "cgroup-pids", "cgroup-cpu"), _OUTSIDE),
    # Any number of files, each of which counts as memory of the container.
    "abuse-inodes": "worked",
    **dict.fromkeys(
        ("abuse-forks", "abuse-memory"), LeftOut("the limit ends the whole container, not a command")
    ),
}

UNFILTERED = LeftOut(
    "no seccomp filter inside (--oci-seccomp, and not by docker exec): gVisor's own kernel answers"
)
_FILTERED_ONLY = (
    "seccomp mknod vsock kernel-crypto uevents user-namespace ptrace process-memory pidfd-getfd io-uring"
    " keyctl userfaultfd perf-event file-handles setns executor-signals"
).split()

_OWN_KERNEL = LeftOut(
    "root inside may, in gVisor's own kernel; the host's limits are around it (host-limits)"
)
_ROOT: Changes = {"mknod": _OWN_KERNEL, "proc-write": _OWN_KERNEL, "cgroup-write": _OWN_KERNEL}


def changes(facts: Facts) -> Changes:
    if not facts.gvisor:
        return {}
    # What enters by `docker exec` meets no filter, whatever gVisor's flags.
    filtered = facts.filtered and facts.executor
    return {
        **_GVISOR,
        **({} if filtered else dict.fromkeys(_FILTERED_ONLY, UNFILTERED)),
        **(_ROOT if facts.root else {}),
    }
