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

UNFILTERED = LeftOut("gVisor runs without --oci-seccomp: its own kernel answers, the host's is not asked")
_FILTERED_ONLY = (
    "seccomp mknod vsock kernel-crypto uevents user-namespace ptrace process-memory pidfd-getfd io-uring"
    " keyctl userfaultfd perf-event file-handles setns executor-signals"
).split()


def changes(facts: Facts) -> Changes:
    if not facts.gvisor:
        return {}
    return {**_GVISOR, **({} if facts.filtered else dict.fromkeys(_FILTERED_ONLY, UNFILTERED))}
