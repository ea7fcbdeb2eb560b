"""What a probe's answer means, on captured answers: of a sealed container and of one without the walls."""

from __future__ import annotations

import asyncio
import copy
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from beige.config import SandboxConfig
from beige.errors import Failed
from beige.messages.sandbox import ProbeResult, VerifyRequest, VerifyResult
from beige.paths import Home
from services.sandbox import probes_gvisor
from services.sandbox.channel import Captured, Command, Exit
from services.sandbox.probes import (
    SEEN_CHARACTERS,
    Facts,
    chosen,
    expectation,
    judge_inside,
    judge_outside,
    left_out,
)
from services.sandbox.probes_inside import INSIDE
from services.sandbox.probes_outside import MASKED, OUTSIDE, READ_ONLY
from services.sandbox.spec import ContainerSpec, base_environment, container_spec
from services.sandbox.verify import Verification, summary

HOME = Home(Path("/srv/beige"))
SEALED = SandboxConfig.model_validate({"image": "i"})
SPEC = container_spec("travel", SEALED, HOME, '{"x": 1}')
PROBES = {probe.id: probe for probe in (*OUTSIDE, *INSIDE)}


LIMITS = {"memory": str(512 * 2**20), "processes": "128", "processors": "1.00"}
"""What the kernel holds for a container made from SPEC."""


def facts(*, executor: bool = True, runtime: str = "runc", filtered: bool = True) -> Facts:
    return Facts(
        SPEC.body, base_environment("travel", SEALED), executor, runtime, str(HOME.root), "/srv/beige/run",
        filtered=filtered,
    )  # fmt: skip


def described() -> dict[str, Any]:
    """The engine's answer about a container made from SPEC, as Docker 20.10 words it."""
    body = copy.deepcopy(SPEC.body)
    host = body["HostConfig"]
    return {
        "Name": f"/{SPEC.name}",
        "State": {"Status": "running", "OOMKilled": False, "Pid": 70},
        "Cgroup": dict(LIMITS),
        "AppArmorProfile": "",
        "Config": {
            "User": body["User"], "Env": [*body["Env"], "PYTHONDONTWRITEBYTECODE=1"], "Image": "i",
            "Entrypoint": body["Entrypoint"], "Cmd": None, "Labels": body["Labels"],
        },
        "HostConfig": {
            **host, "CapAdd": None, "Devices": [], "DeviceRequests": None, "ExtraHosts": None,
            "Sysctls": None,
            "MaskedPaths": ["/proc/asound", *MASKED], "ReadonlyPaths": [*READ_ONLY], "Runtime": "runc",
        },
        "Mounts": [
            {"Type": "bind", "Source": m["Source"], "Destination": m["Target"], "RW": not m["ReadOnly"],
             "Propagation": "rprivate"}
            for m in host["Mounts"]
        ],
        "NetworkSettings": {
            "Ports": {}, "Networks": {"none": {"IPAddress": "", "GlobalIPv6Address": ""}},
        },
    }  # fmt: skip


# --- the tables themselves ------------------------------------------------------------------------------


def test_there_are_at_least_forty_and_each_has_a_name_of_its_own() -> None:
    assert len(INSIDE) >= 40 and len(OUTSIDE) >= 20
    assert len(PROBES) == len(INSIDE) + len(OUTSIDE)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in PROBES)


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_says_what_it_shows_and_expects_a_text(name: str) -> None:
    """An empty expectation would be met by a script that could not run."""
    assert PROBES[name].shows
    assert expectation(PROBES[name], facts()).strip()


@pytest.mark.parametrize("probe", INSIDE, ids=[probe.id for probe in INSIDE])
def test_no_probe_sends_anything(probe: Any) -> None:
    """A connected UDP socket asks for a route; it is the only connect there is."""
    sends = re.compile(
        r"curl|wget|/dev/tcp|/dev/udp|send|getaddrinfo|gethostby|create_connection|\bnc\b|ping"
    )
    assert not sends.search(probe.script)
    if ".connect(" in probe.script:
        assert probe.id == "no-way-out" and "SOCK_DGRAM" in probe.script


def test_python_takes_nothing_from_the_agents_directories() -> None:
    assert all("python3 -I" in probe.script for probe in INSIDE if "python3" in probe.script)


def test_what_uses_limits_up_runs_last_and_only_when_asked_for() -> None:
    assert not any(probe.abuse for probe in chosen(INSIDE, abuse=False))
    everything = chosen((*INSIDE, *OUTSIDE), abuse=True)
    assert len(everything) == len(PROBES)
    assert [p.id for p in everything if p.abuse] == [p.id for p in everything[-5:]]


# --- from inside ----------------------------------------------------------------------------------------

CAPTURED: list[tuple[str, bytes, bytes]] = [
    ("uid", b"64000\n", b"0\n"),
    ("gid", b"64000 64000\n", b"0 0 27\n"),
    ("capabilities", b"0000000000000000\n", b"0000000000000000\n00000000a80425fb\n"),
    ("seccomp", b"2\n", b"0\n"),
    ("no-new-privileges", b"1\n", b"0\n"),
    ("setuid-0", b"EPERM\n", b"worked\n"),
    ("privilege-tools", b"none\n", b"sudo\n"),
    ("root-mount", b"ro\n", b"rw\n"),
    ("writable-directories", b"none\n", b"/ /usr /usr/bin\n"),
    ("mounts-inside", b"/run/beige /tools/bin /tools/packages /workspace\n", b"/srv/beige\n"),
    ("tmp-size", b"67108864\n", b"270553174016\n"),
    ("other-agents", b"none\n", b"/srv/beige/run/bus.sock\n"),
    ("vsock", b"EPERM\n", b"worked\n"),
    ("kernel-crypto", b"EPERM\n", b"EAFNOSUPPORT\n"),
    ("io-uring", b"EPERM\n", b"EFAULT\n"),
    ("interfaces", b"lo\n", b"eth0 lo\n"),
    ("routes", b"0 0\n", b"2 0\n"),
    ("executor-closed", b"0\nclosed\n0\n", b"0\nopen\n0\n"),
    ("executor-private", b"0\n0\n", b"165\n3\n"),
    ("open-files", b"1024 4096\n", b"20000 20000\n"),
    ("file-size", b"refused\n2097152\n", b"worked\nunlimited\n"),
    ("cgroup-memory", b"536870912\n", b"9223372036854771712\n"),
    ("cgroup-pids", b"128\n", b"max\n"),
    ("cgroup-cpu", b"1.00\n", b"-0.00\n"),
    ("abuse-forks", b"refused\n", b"never refused\n"),
    ("abuse-memory", b"137\n", b"0\n"),
]  # fmt: skip
IDS = [name for name, _, _ in CAPTURED]
BY_ID = {probe.id: probe for probe in INSIDE}


@pytest.mark.parametrize(("name", "sealed", "bare"), CAPTURED, ids=IDS)
def test_a_captured_answer_is_told_apart(name: str, sealed: bytes, bare: bytes) -> None:
    assert judge_inside(BY_ID[name], facts(), 0, sealed).status == "pass"
    assert judge_inside(BY_ID[name], facts(), 0, bare).status == "fail"


@pytest.mark.parametrize("probe", INSIDE, ids=[probe.id for probe in INSIDE])
def test_a_script_that_did_not_run_has_failed(probe: Any) -> None:
    right = expectation(probe, facts()).encode()
    assert judge_inside(probe, facts(), 0, right + b"\n").status == "pass"
    for exit_code, stdout in [(0, b""), (127, b""), (137, right), (124, right), (0, right + b"\nmore")]:
        assert judge_inside(probe, facts(), exit_code, stdout).status == "fail"


def test_what_a_container_says_is_kept_short_whatever_it_is() -> None:
    verdict = judge_inside(BY_ID["uid"], facts(), 0, b"\xff\x1b[2J" * 10_000)
    assert verdict.status == "fail" and len(verdict.seen) == SEEN_CHARACTERS


def test_the_environment_is_compared_by_value() -> None:
    text = "\n".join(sorted(f"{k}={v}" for k, v in base_environment("travel", SEALED).items()))
    assert judge_inside(BY_ID["environment"], facts(), 0, text.encode()).status == "pass"
    for other in (text.replace("/tools/bin", "/tmp/bin"), f"ANTHROPIC_API_KEY=x\n{text}"):
        assert judge_inside(BY_ID["environment"], facts(), 0, other.encode()).status == "fail"


def test_paths_and_limits_are_arguments_never_part_of_a_script() -> None:
    odd = Facts(SPEC.body, {}, True, "runc", "/srv/$(id)'", "/r")
    argv = BY_ID["host-files"].argv(odd)
    assert argv[4:] == ("/srv/$(id)'", "/r", "128", str(512 * 2**20), str(64 * 2**20))
    assert "/srv" not in argv[2]


# --- runtimes and images that are not the usual ones ----------------------------------------------------


def test_in_gvisor_as_much_is_judged_as_its_kernel_can_show() -> None:
    def out(filtered: bool) -> set[str]:
        here = facts(runtime="runsc", filtered=filtered)
        return {name for name, probe in PROBES.items() if left_out(probe, here, probes_gvisor.changes(here))}

    different = {
        "executor-private",
        "cgroup-memory",
        "cgroup-pids",
        "cgroup-cpu",
        "abuse-forks",
        "abuse-memory",
    }
    assert out(filtered=True) == different
    assert {"seccomp", "vsock", "io-uring", "executor-signals"} <= out(filtered=False) - different
    assert not out(filtered=False) & {"uid", "no-new-privileges", "host-files", *(p.id for p in OUTSIDE)}
    assert probes_gvisor.changes(facts()) == {}, "runc"


def test_what_gvisor_changes_are_probes() -> None:
    assert set(probes_gvisor.changes(facts(runtime="runsc", filtered=False))) <= set(PROBES)


def test_an_image_without_the_executor_leaves_out_what_is_about_it() -> None:
    out = {name for name, probe in PROBES.items() if left_out(probe, facts(executor=False))}
    assert out == {
        *("environment", "first-process-inside", "executor-closed", "executor-private", "executor-signals"),
        "victims",
    }


# --- from outside ---------------------------------------------------------------------------------------

H, C = "HostConfig", "Config"
SPOILT: dict[str, tuple[tuple[str, ...], Any]] = {
    "state": (("State",), {"Status": "running", "OOMKilled": True}),
    "network-mode": ((H, "NetworkMode"), "bridge"),
    "networks": (("NetworkSettings", "Networks"), {"none": {}, "bridge": {}}),
    "addresses": (
        ("NetworkSettings", "Networks"), {"x": {"IPAddress": "172.30.0.2", "GlobalIPv6Address": ""}},
    ),
    "ports": ((H, "PublishAllPorts"), True),
    "extra-hosts": ((H, "ExtraHosts"), ["x:127.0.0.1"]),
    "links": ((H, "Links"), ["/other:/this/other"]),
    "root-flag": ((H, "ReadonlyRootfs"), False),
    "cap-drop": ((H, "CapDrop"), ["NET_RAW"]),
    "cap-add": ((H, "CapAdd"), ["CAP_SYS_ADMIN"]),
    "privileged": ((H, "Privileged"), True),
    "nnp-flag": ((H, "SecurityOpt"), ["no-new-privileges:false", 'seccomp={"x": 1}']),
    "seccomp-profile": ((H, "SecurityOpt"), ["no-new-privileges:true", 'seccomp={"x": 2}']),
    "security-options": ((H, "SecurityOpt"), ["no-new-privileges:true", "label=disable"]),
    "apparmor": (("AppArmorProfile",), "unconfined"),
    "user": ((C, "User"), ""),
    "groups": ((H, "GroupAdd"), ["docker"]),
    "ipc": ((H, "IpcMode"), "host"),
    "pid": ((H, "PidMode"), "host"),
    "uts": ((H, "UTSMode"), "host"),
    "userns": ((H, "UsernsMode"), "host"),
    "devices": ((H, "DeviceRequests"), [{"Driver": "nvidia"}]),
    "mounts": (("Mounts",), [{"Source": "/", "Destination": "/workspace", "RW": True}]),
    "propagation": (("Mounts",), [{"Propagation": "rshared"}]),
    "volumes-from": ((H, "VolumesFrom"), ["other"]),
    "binds": ((H, "Binds"), ["/:/host"]),
    "masked": ((H, "MaskedPaths"), None),
    "read-only-paths": ((H, "ReadonlyPaths"), ["/proc/bus"]),
    "sysctls": ((H, "Sysctls"), {"net.ipv4.ip_forward": "1"}),
    "memory-limit": ((H, "Memory"), 0),
    "swap-limit": ((H, "MemorySwap"), -1),
    "cpu-limit": ((H, "NanoCpus"), 0),
    "pids-limit": ((H, "PidsLimit"), None),
    "host-limits": (("Cgroup", "memory"), "9223372036854771712"),
    "ulimits": ((H, "Ulimits"), [{"Name": "core", "Soft": -1, "Hard": -1}]),
    "oom": ((H, "OomScoreAdj"), -1000),
    "tmpfs": ((H, "Tmpfs"), {"/tmp": "rw"}),
    "shm": ((H, "ShmSize"), 2**40),
    "log": ((H, "LogConfig"), {"Type": "json-file", "Config": {}}),
    "restart": ((H, "RestartPolicy"), {"Name": "always"}),
    "environment-names": ((C, "Env"), ["PATH=/bin", "ANTHROPIC_API_KEY=x"]),
    "first-process": ((C, "Cmd"), ["bash"]),
    "specification": ((C, "Labels"), {"beige.spec": "another"}),
}  # fmt: skip
"""For each probe, the place in the engine's answer and a value that must not be there."""
ONLY_ITSELF = {"runtime": "says what the configuration says; without one any runtime is the right one"}


def test_each_outside_probe_has_a_spoilt_container() -> None:
    assert set(SPOILT) | set(ONLY_ITSELF) == {probe.id for probe in OUTSIDE}


@pytest.mark.parametrize("probe", OUTSIDE, ids=[probe.id for probe in OUTSIDE])
def test_the_specified_container_passes(probe: Any) -> None:
    verdict = judge_outside(probe, facts(), described())
    assert (verdict.status, verdict.seen) == ("pass", verdict.expected)


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_container_fails(name: str) -> None:
    found = described()
    path, value = SPOILT[name]
    place = found
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    probe = next(probe for probe in OUTSIDE if probe.id == name)
    assert judge_outside(probe, facts(), found).status == "fail"


def test_another_runtime_than_the_configured_one_fails() -> None:
    body = copy.deepcopy(SPEC.body)
    body["HostConfig"]["Runtime"] = "runsc"
    wanted = Facts(body, {}, True, "runc", "", "")
    (probe,) = (probe for probe in OUTSIDE if probe.id == "runtime")
    assert judge_outside(probe, wanted, described()).status == "fail"


@pytest.mark.parametrize("answer", [{}, {"HostConfig": None}, {"HostConfig": {}, "Config": {}}])
def test_an_answer_in_another_form_is_no_pass(answer: dict[str, Any]) -> None:
    verdicts = {probe.id: judge_outside(probe, facts(), answer).status for probe in OUTSIDE}
    for name in ("state", "network-mode", "root-flag", "cap-drop", "nnp-flag", "user", "mounts", "masked"):
        assert verdicts[name] == "fail", name


# --- the run ----------------------------------------------------------------------------------------------


class Container:
    """Answers each script as a sealed container would, but for those in `wrong`."""

    agent = "travel"
    kind = "init"

    def __init__(self, wrong: dict[str, bytes] | None = None, there: bool = True) -> None:
        self.wrong, self.there, self.commands = wrong or {}, there, list[Command]()

    async def channel(self) -> Any:
        return self

    async def described(self) -> tuple[ContainerSpec, dict[str, Any] | None]:
        found = {name: part for name, part in described().items() if name != "Cgroup"}
        return SPEC, found if self.there else None

    async def filtered(self) -> bool:
        return True

    async def newly_out_of_memory(self) -> bool:
        return False

    async def run(self, command: Command) -> Exit:
        self.commands.append(command)
        probe = next(probe for probe in INSIDE if command.argv[2].endswith(probe.script))
        said = self.wrong.get(probe.id, expectation(probe, facts()).encode())
        return Exit(0, False, Captured(4096, head=bytearray(said)), Captured(4096))


def kernel(pid: int) -> dict[str, str]:
    assert pid == 70
    return dict(LIMITS)


def run(container: Container, *, abuse: bool = False) -> tuple[list[ProbeResult], VerifyResult]:
    verification = Verification(container, HOME, SEALED, kernel)

    async def main() -> list[ProbeResult]:
        return [result async for result in verification.run(VerifyRequest(abuse))]

    return asyncio.run(main()), verification.report()


def test_all_pass_and_each_is_reported_in_order() -> None:
    results, report = run(Container())
    gentle = [probe.id for probe in (*OUTSIDE, *INSIDE) if not probe.abuse]
    assert [result.id for result in results] == gentle
    assert [result.number for result in results] == list(range(1, len(gentle) + 1))
    assert (report.passed, report.failed, report.skipped) == (len(gentle), [], [])
    assert (report.container, report.runtime, report.executor) == (SPEC.name, "runc", "init")


def test_limits_that_the_kernel_does_not_show_are_no_pass() -> None:
    def unreadable(pid: int) -> dict[str, str]:
        raise FileNotFoundError

    verification = Verification(Container(), HOME, SEALED, unreadable)

    async def main() -> None:
        async for _ in verification.run(VerifyRequest(False)):
            pass

    asyncio.run(main())
    assert verification.report().failed == ["host-limits"]


def test_one_failure_is_named_in_the_report_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    results, report = run(Container({"vsock": b"worked\n"}))
    assert report.failed == ["vsock"]
    (failed,) = (result for result in results if result.status == "fail")
    assert (failed.expected, failed.seen) == ("EPERM", "worked")
    summary(report, logging.getLogger("test"), "travel")
    assert caplog.records[0].levelno == logging.WARNING and "failed: vsock" in caplog.text


def test_commands_run_as_the_agents_own_do() -> None:
    container = Container()
    run(container)
    for command in container.commands:
        assert command.env == base_environment("travel", SEALED)
        assert command.cwd == "/workspace" and command.timeout_s == 60


def test_a_container_that_went_away_is_an_error_not_a_pass() -> None:
    with pytest.raises(Failed, match="gone"):
        run(Container(there=False))
