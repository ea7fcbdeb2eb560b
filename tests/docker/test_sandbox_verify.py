"""`beige sandbox verify`: the same probes pass on a sealed container and fail where the walls are missing.

The negative control: two containers of the same image. `plain` is what `docker run` makes of it, as root.
`bare` is privileged, has the house's home mounted and some things planted in it. What each probe says
there is written down below, and a probe that passes where it should fail fails the test. Neither has a way
off this machine: `plain` has no network, `bare` one that leads nowhere; no probe sends anything anyway.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys

import pytest

from beige.config import load
from beige.supervisor import environment
from services.sandbox import cgroups
from services.sandbox.probes import Facts, chosen, judge_inside, judge_outside
from services.sandbox.probes_inside import INSIDE
from services.sandbox.probes_outside import OUTSIDE
from services.sandbox.service import seccomp_profile
from services.sandbox.spec import base_environment, container_spec

pytestmark = pytest.mark.docker
PLAIN = {name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_HOST") if name in os.environ}
PROBES = {probe.id: probe for probe in (*OUTSIDE, *INSIDE)}
SMALL = {"memory": "128m", "tmpSize": "16m", "homeSize": "16m", "pids": 64}


@pytest.fixture(scope="module")
def small_house(make_house, sandbox_image, tools):
    with make_house({"small": tools.agent(sandbox_image, **SMALL)}) as made:
        yield made


def beige(home, *arguments):
    return subprocess.run(
        [sys.executable, "-P", "-m", "beige.cli", *arguments],
        env=environment.minimal(home, PLAIN), cwd="/",
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def verified(small_house):
    return beige(small_house.home, "sandbox", "verify", "small", "--abuse", "--json")


def test_every_probe_passes_on_a_sealed_container(verified):
    assert verified.returncode == 0, verified.stdout + verified.stderr
    report = json.loads(verified.stdout)
    assert (report["failed"], report["skipped"]) == ([], [])
    assert (report["profile"], report["executor"]) == ("sealed", "init")
    assert [p["id"] for p in report["probes"]] == [p.id for p in chosen((*OUTSIDE, *INSIDE), abuse=True)]
    assert all(p["status"] == "pass" and p["seen"] == p["expected"] for p in report["probes"])
    assert report["passed"] == len(PROBES)


# --- the negative control -----------------------------------------------------------------------------


def docker(*arguments, stdin=None):
    done = subprocess.run(["docker", *arguments], input=stdin, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def facts(small_house):
    """As the service has them for the agent, but for the container."""
    home = small_house.home
    sandbox = load(home).agents["small"].sandbox
    spec = container_spec("small", sandbox, home, seccomp_profile("seccomp.json"))
    return Facts(spec.body, base_environment("small", sandbox), True, "runc", str(home.root), str(home.run))


TMP = "--tmpfs=/tmp:exec"
"""Without a bound of ours; on the disk the inodes of one probe would take seven seconds."""
PLANT = """
cp /bin/true /usr/bin/sudo; cp /bin/true /usr/bin/apt; cp /bin/true /usr/bin/docker
cp /bin/true /usr/bin/set-id; chmod 4755 /usr/bin/set-id; chmod 755 /home/agent
python3 -I -c '
import ctypes, os, struct
mount = ctypes.CDLL(None).mount
top = b"/sys/fs/cgroup"
for path in [top] + [os.path.join(top, name) for name in os.listdir(top)]:
    mount(b"", path, b"", 0x1020, None)
mount(b"sysfs", b"/sys", b"sysfs", 0x20, None)
os.setxattr("/usr/bin/apt", "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
'
"""
ENGINE_SOCKET = """
import socket
socket.socket(socket.AF_UNIX).bind("/run/docker.sock")
"""


@pytest.fixture(scope="module")
def controls(small_house, sandbox_image, facts):
    """Seen by each probe in `plain` and `bare`: {name: {probe: verdict}}."""
    home = small_house.home
    network = f"beige-test-{secrets.token_hex(4)}"
    label = "--label=beige.test=verify"
    made = []

    def start(*flags):
        made.append(docker("create", label, TMP, *flags, sandbox_image, "sleep", "infinity").decode().strip())
        docker("start", made[-1])
        return made[-1]

    docker("network", "create", "--internal", label, network)
    try:
        plain = start("--network=none", "--user=0")
        bare = start(
            "--user=0", "--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined",
            *(f"--cap-add={name}" for name in ("SYS_ADMIN", "SYS_PTRACE", "SYS_MODULE", "DAC_READ_SEARCH")),
            f"--network={network}", "--publish=127.0.0.1::9",
            "--uts=host", "--ipc=shareable", f"--pid=container:{plain}", "--userns=host", "--group-add=27",
            "--sysctl=net.ipv4.ip_default_ttl=64", "--device=/dev/zero:/dev/planted",
            f"--volume={home.root}:{home.root}:private", "--add-host=x:127.0.0.1", f"--volumes-from={plain}",
            "--env=ANTHROPIC_API_KEY=canary", "--restart=always", "--security-opt=label=disable",
            "--security-opt=apparmor=unconfined",
        )  # fmt: skip
        docker("exec", bare, "bash", "-ec", PLANT)
        docker("exec", bare, "python3", "-c", ENGINE_SOCKET)
        yield {name: judged(container, facts) for name, container in {"plain": plain, "bare": bare}.items()}
    finally:
        for container in made:
            docker("rm", "--force", container)
        docker("network", "rm", network)


DRIVER = """
import json, subprocess, sys
done = [subprocess.run(argv, capture_output=True, timeout=60) for argv in json.load(sys.stdin)]
print(json.dumps([[one.returncode, one.stdout.decode("latin-1")] for one in done]))
"""


def judged(container, facts):
    """All scripts in one `docker exec`."""
    (inspected,) = json.loads(docker("inspect", container))
    inspected["Cgroup"] = cgroups.limits(inspected["State"]["Pid"])
    scripts = json.dumps([probe.argv(facts) for probe in INSIDE]).encode()
    out = docker(
        "exec", "-i", "--workdir=/workspace", container, "python3", "-I", "-c", DRIVER, stdin=scripts
    )
    seen = {probe.id: judge_outside(probe, facts, inspected) for probe in OUTSIDE}
    for probe, (exit_code, stdout) in zip(INSIDE, json.loads(out), strict=True):
        seen[probe.id] = judge_inside(probe, facts, exit_code, stdout.encode("latin-1"))
    return seen


ANY_CONTAINER = {
    "state": "it runs as well",
    "executor-signals": "the kernel lets nobody inside a pid namespace end its first process",
    **dict.fromkeys(
        ("links", "privileged", "runtime", "apparmor"),
        "can't be had on every engine; tests/unit/sandbox/test_probes.py has it",
    ),
}
"""Probes that no control fails, and why not."""
PLAIN_FAILS = (
    "root-flag cap-drop nnp-flag seccomp-profile user mounts propagation memory-limit swap-limit cpu-limit"
    " pids-limit host-limits ulimits oom tmpfs shm log first-process specification"
    " uid gid capabilities no-new-privileges setuid-0 setgroups chown environment"
    " root-mount writable-directories mounts-inside engine-files tmp-noexec tmp-size home-size hard-link"
    " set-uid-workspace mknod packet-socket raw-socket uevents chroot ptrace ptrace-executor"
    " first-process-inside executor-closed executor-private victims file-size cgroup-memory cgroup-pids"
    " cgroup-cpu abuse-forks abuse-memory abuse-tmp abuse-inodes abuse-survived"
).split()
"""What Docker does not do of its own accord, whichever its version. Newer profiles of its own refuse more
sockets and io_uring; limits of open files are the daemon's."""


def test_a_plain_container_fails_where_beige_hardens(controls):
    passed = [name for name in PLAIN_FAILS if controls["plain"][name].status != "fail"]
    assert passed == []


def test_each_probe_fails_where_its_wall_is_missing(controls):
    passed = {name for name, verdict in controls["bare"].items() if verdict.status != "fail"}
    assert passed == set(ANY_CONTAINER)


def test_the_controls_ran_the_probes(controls):
    """They failed because of what they saw, not because a script could not run."""
    for verdicts in controls.values():
        broken = [
            name for name, v in verdicts.items() if "[exit code" in v.seen or v.seen.startswith("not in")
        ]
        assert broken == []


# --- a container that is not as it should be -----------------------------------------------------------


@pytest.fixture(scope="module")
def spoilt_image(sandbox_image, tools):
    """One with sudo in it, and without the executor."""
    tag = f"beige-test-spoilt:{os.getpid()}"
    recipe = f"FROM {sandbox_image}\nUSER 0\nRUN cp /bin/true /usr/bin/sudo && rm /beige/init\nUSER 64000\n"
    docker("build", "--quiet", "--tag", tag, "-", stdin=recipe.encode())
    yield tag
    docker("rmi", "--force", tag)


def test_a_wall_that_is_missing_is_named_and_the_exit_code_says_so(make_house, spoilt_image, tools):
    with make_house({"spoilt": tools.agent(spoilt_image)}) as house:
        done = beige(house.home, "sandbox", "verify", "spoilt")
        assert done.returncode == 1, done.stderr
        assert "FAIL privilege-tools: " in done.stdout and "  seen:     sudo\n" in done.stdout
        assert "1 failed, 6 skipped" in done.stdout.splitlines()[-1]
        log = (house.home.logs / "sandbox.log").read_text()
    assert "failed: privilege-tools" in log


def test_a_limit_changed_on_the_running_container_is_found_by_verify_and_show(small_house, verified):
    name, home = small_house.container("small"), small_house.home
    docker("update", "--pids-limit=100", name)
    try:
        done = beige(home, "sandbox", "verify", "small", "--json")
        report = json.loads(done.stdout)
        assert (done.returncode, report["failed"]) == (1, ["pids-limit", "host-limits", "cgroup-pids"])
        seen = {p["id"]: (p["expected"], p["seen"]) for p in report["probes"]}
        assert seen["pids-limit"] == seen["cgroup-pids"] == ("64", "100")
        rows = beige(home, "sandbox", "show", "small").stdout.splitlines()
        assert [row.split() for row in rows if row.startswith("!")] == [
            ["!", "HostConfig.PidsLimit", "64", "100"]
        ]
    finally:
        docker("update", "--pids-limit=64", name)


def test_a_rebuilt_container_is_another_one(small_house, verified):
    before = docker("inspect", "--format={{.Id}}", small_house.container("small"))
    done = beige(small_house.home, "sandbox", "rebuild", "small")
    assert done.stdout == f"made {small_house.container('small')}\n", done.stderr
    assert docker("inspect", "--format={{.Id}}", small_house.container("small")) != before


def test_show_has_every_flag_and_marks_what_differs(small_house, verified):
    done = beige(small_house.home, "sandbox", "show", "small", "--json")
    view = json.loads(done.stdout)
    flags = {flag["name"]: flag for flag in view["flags"]}
    assert flags["HostConfig.NetworkMode"] == {
        "name": "HostConfig.NetworkMode", "wanted": "none", "engine": "none", "differs": False,
    }  # fmt: skip
    assert [name for name, flag in flags.items() if flag["differs"]] == []
    assert view["limits"]["memory"] == "128m"
