"""The seccomp profile for gVisor: its first rules keep everybody's signals from the first process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.sandbox.gvisor import guarded
from services.sandbox.service import seccomp_profile

MASK = 2**64 - 1


def decided(profile: dict[str, Any], name: str, *arguments: int) -> str:
    """As gVisor reads a profile: the first rule that fits."""
    for rule in profile["syscalls"]:
        fits = (
            arguments[a["index"]] & a["value"] == a["valueTwo"]
            if a["op"] == "SCMP_CMP_MASKED_EQ"
            else arguments[a["index"]] == a["value"]
            for a in rule.get("args") or ()
        )
        if name in rule["names"] and all(fits):
            return str(rule["action"])
    return str(profile["defaultAction"])


PROFILES = {name: seccomp_profile(name) for name in ("seccomp.json", "seccomp-root.json")}
ALLOW, ERRNO = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"


@pytest.mark.parametrize("text", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (("kill", 1, 19), ERRNO),
        (("kill", 1 << 32 | 1, 9), ERRNO),  # the kernel reads 32 bits of it
        (("tkill", 1, 19), ERRNO),
        (("tgkill", 1, 1, 19), ERRNO),
        (("tgkill", MASK << 32 & MASK | 7, 1, 19), ERRNO),
        (("rt_sigqueueinfo", 1, 19, 0), ERRNO),
        (("rt_tgsigqueueinfo", 1, 1, 19, 0), ERRNO),
        (("fcntl", 3, 8, 1), ERRNO),
        (("fcntl", 3, 15, 0), ERRNO),
        (("ioctl", 3, 0x8901, 0), ERRNO),
        (("ioctl", 3, 0x8902, 0), ERRNO),
        (("kill", 2, 9), ALLOW),
        (("kill", 11, 9), ALLOW),
        (("kill", MASK, 9), ALLOW),  # -1: everybody but the first process
        (("kill", 0, 15), ALLOW),
        (("tgkill", 12, 12, 6), ALLOW),
        (("fcntl", 3, 2, 1), ALLOW),
        (("ioctl", 1, 0x5401, 0), ALLOW),
        (("io_uring_setup", 1, 0), ERRNO),
    ],
)
def test_the_first_process_is_out_of_reach_and_nothing_else_changes(
    text: str, call: tuple[Any, ...], expected: str
) -> None:
    assert decided(json.loads(guarded(text)), *call) == expected


def test_every_rule_of_the_profile_is_kept() -> None:
    for text in PROFILES.values():
        before, after = json.loads(text), json.loads(guarded(text))
        added = len(after["syscalls"]) - len(before["syscalls"])
        assert after["syscalls"][added:] == before["syscalls"]
        assert {**after, "syscalls": []} == {**before, "syscalls": []}
