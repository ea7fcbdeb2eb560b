"""What the seccomp profile needs beside it in gVisor: nobody may signal the first process. Pure.

Linux lets nobody inside a pid namespace end or stop its first process; gVisor's kernel does. An agent could
stop the executor, and then every call waits for its deadline. So whatever sends a signal to pid 1 by number
is refused, here by a filter (`--oci-seccomp`), which gVisor reads in order: the first rule that fits decides.
runc's libseccomp would not, so this profile is for gVisor alone.
"""

from __future__ import annotations

import json
from typing import Any

FIRST_PROCESS = 1
LOW_HALF = 0xFFFF_FFFF
"""A pid has 32 bits; the filter sees the register's 64, whose upper half is the caller's to choose."""
F_SETOWN, F_SETOWN_EX = 8, 15
"""Whoever owns a descriptor gets its signals (F_SETSIG chooses which)."""
FIOSETOWN, SIOCSPGRP = 0x8901, 0x8902

SIGNALS = {"kill": 0, "tkill": 0, "tgkill": 1, "rt_sigqueueinfo": 0, "rt_tgsigqueueinfo": 1}
"""Which argument names the process or thread. The executor has one thread, so its number is 1, too."""


def guarded(profile: str) -> str:
    """`profile`, JSON text, with the first process out of reach."""
    parsed = json.loads(profile)
    rules = [_refuse(name, index, FIRST_PROCESS) for name, index in SIGNALS.items()]
    rules += [_refuse("fcntl", 1, command) for command in (F_SETOWN, F_SETOWN_EX)]
    rules += [_refuse("ioctl", 1, command) for command in (FIOSETOWN, SIOCSPGRP)]
    return json.dumps({**parsed, "syscalls": [*rules, *parsed["syscalls"]]})


def _refuse(name: str, index: int, number: int) -> dict[str, Any]:
    return {
        "names": [name],
        "action": "SCMP_ACT_ERRNO",
        "args": [{"index": index, "value": LOW_HALF, "valueTwo": number, "op": "SCMP_CMP_MASKED_EQ"}],
    }
