"""The sealed seccomp profile says what mkseccomp.py lists, and refuses what it must."""

import importlib.util
import json

import pytest

from beige.paths import image_dir

spec = importlib.util.spec_from_file_location("mkseccomp", image_dir() / "mkseccomp.py")
mkseccomp = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mkseccomp)

PROFILE = json.loads((image_dir() / "seccomp.json").read_text())
ALLOWED = {name for rule in PROFILE["syscalls"] if not rule.get("args") for name in rule["names"]}
# clone3 has a rule without arguments that refuses it.
ALLOWED -= {n for r in PROFILE["syscalls"] if r["action"] != "SCMP_ACT_ALLOW" for n in r["names"]}


def rules(name):
    return [rule for rule in PROFILE["syscalls"] if name in rule["names"]]


def test_the_file_matches_its_list():
    assert (image_dir() / "seccomp.json").read_text() == mkseccomp.text()
    assert (image_dir() / "seccomp-root.json").read_text() == mkseccomp.text(root=True)


def test_root_inside_gets_three_calls_more_and_nothing_else():
    more = json.loads((image_dir() / "seccomp-root.json").read_text())
    assert more["syscalls"][: len(PROFILE["syscalls"])] == PROFILE["syscalls"]
    assert more["syscalls"][len(PROFILE["syscalls"]) :] == [
        {"names": ["chroot", "mknod", "mknodat"], "action": "SCMP_ACT_ALLOW"}
    ]
    assert {k: v for k, v in more.items() if k != "syscalls"} == {
        k: v for k, v in PROFILE.items() if k != "syscalls"
    }


def test_what_is_not_listed_is_refused():
    assert (PROFILE["defaultAction"], PROFILE["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 1)


def test_it_serves_both_architectures_and_no_32_bit_calls():
    assert PROFILE["architectures"] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]


def test_nothing_refused_with_a_reason_is_allowed():
    assert not ALLOWED & set(mkseccomp.names_of(mkseccomp.REFUSED))


def test_no_call_is_listed_twice():
    names = mkseccomp.names_of(mkseccomp.ALLOWED) + mkseccomp.names_of(mkseccomp.REFUSED)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "name",
    ["io_uring_setup", "ptrace", "unshare", "setns", "keyctl", "bpf", "mount", "chroot"],
)
def test_the_worst_have_no_rule_at_all(name):
    assert rules(name) == []


def test_sockets_of_no_other_family_than_these_can_be_made():
    """Above all not 40, AF_VSOCK: no network namespace contains it."""
    assert "socket" not in ALLOWED
    families = [rule["args"][0] for rule in rules("socket")]
    assert [(a["index"], a["op"], a["value"]) for a in families] == [
        (0, "SCMP_CMP_EQ", family) for family in (1, 2, 10, 16)
    ]
    netlink = rules("socket")[-1]["args"]
    assert (netlink[1]["index"], netlink[1]["value"]) == (2, 0)


def test_clone_makes_no_namespaces_and_clone3_is_unknown():
    assert "clone" not in ALLOWED
    (clone,) = rules("clone")
    assert (clone["args"][0]["value"], clone["args"][0]["valueTwo"]) == (0x7E020000, 0)
    (clone3,) = rules("clone3")
    assert (clone3["action"], clone3["errnoRet"]) == ("SCMP_ACT_ERRNO", 38)


def test_only_fifos_can_be_made_with_mknod():
    for name, index in (("mknod", 1), ("mknodat", 2)):
        (rule,) = rules(name)
        assert rule["args"] == [
            {"index": index, "value": 0o170000, "valueTwo": 0o010000, "op": "SCMP_CMP_MASKED_EQ"}
        ]


def test_the_limits_of_other_processes_can_only_be_read():
    assert "prlimit64" not in ALLOWED
    arguments = [[(a["index"], a["op"], a["value"]) for a in rule["args"]] for rule in rules("prlimit64")]
    assert arguments == [[(0, "SCMP_CMP_EQ", 0)], [(2, "SCMP_CMP_EQ", 0)]]
