"""Agents in gVisor, on an engine of the test's own that lists it: `gvisor_stage.py` says who they are."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

from beige import auditlog
from beige.config import load
from beige.errors import BeigeError, Failed, NotFound
from beige.messages.base import AgentRef, Empty
from beige.messages.sandbox import ExecRequest, PatchRequest, ReadRequest, VerifyRequest, WriteRequest
from beige.supervisor import environment
from services.sandbox import cgroups, probes_gvisor
from services.sandbox.probes import Facts, judge_inside, judge_outside
from services.sandbox.probes_inside import INSIDE
from services.sandbox.probes_outside import OUTSIDE
from services.sandbox.service import seccomp_profile
from services.sandbox.spec import base_environment, container_spec
from tests.docker import private_engine
from tests.docker.gvisor_stage import IMPOSTOR, KERNEL, RUNSC, RUNTIMES, USURPER, World, agents, page
from tests.simulator.internet import Internet

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def engine(sandbox_image):
    if not private_engine.possible():
        pytest.skip("a second engine needs root and dockerd")
    if not RUNSC.exists():
        pytest.skip("no gVisor: run scripts/runsc.sh")
    with private_engine.running(sandbox_image, RUNTIMES) as made:
        yield made
        assert made.docker("ps", "--all", "--quiet").stdout == "", "an orderly end left containers"


@pytest.fixture(scope="module")
def without_executor(engine, sandbox_image):
    """The image, without /beige/init; on the test's own engine alone."""
    removal = ("--user=0", "--network=none", "--entrypoint=rm", sandbox_image, "/beige/init")
    made = engine.docker("create", *removal).stdout.strip()
    engine.docker("start", "--attach", made)
    engine.docker(
        "commit", "--change=USER 64000", "--change=ENTRYPOINT []", made, "beige-test-foreign:gvisor"
    )
    engine.docker("rm", made)
    return "beige-test-foreign:gvisor"


@pytest.fixture(scope="module")
def world(make_house, engine, sandbox_image, without_executor, tools):
    with make_house({}, DOCKER_HOST=engine.host) as house, Internet(house.home) as internet:
        site = internet.site("web.example", page)
        made = World(house, engine, site)
        for name in ("sandbox", "policy"):
            house.stop(name)
        tools.write_config(house.home, agents(tools.agent, sandbox_image, without_executor, site.place))
        house.start("policy")
        internet.start(house)
        house.start("bridge")
        house.start("tools")
        made.start_sandbox()
        yield made


def test_a_sealed_agent_gets_gvisor_where_the_engine_lists_it(world, tools):
    async def test(bus):
        assert await tools.out(bus, "cat /proc/version") == KERNEL
        assert await tools.out(bus, "cat /proc/version", "plain") != KERNEL, "control"

    world.house.operate(test)
    runtimes = [world.inspect(name, "{{.HostConfig.Runtime}}") for name in ("travel", "plain")]
    assert runtimes == ["runsc", "runc"]


def test_the_core_tools_work(world, tools):
    async def call(bus, body, method):
        return await bus.call(f"sandbox.{method}", body, agent="travel", ttl_s=60)

    async def test(bus):
        seen = await tools.bash(bus, "cat; echo oops >&2; exit 3", stdin=b"given")
        assert (seen.exit_code, seen.stdout, seen.stderr) == (3, b"given", b"oops\n")
        await call(bus, WriteRequest("sub/file", b"one two\n" * 1000 + b"end\n"), "write")
        await call(bus, PatchRequest("sub/file", "one two\n" * 999 + "one two\nend", "three"), "patch")
        read = await call(bus, ReadRequest("sub/file"), "read")
        assert read.content == b"three\n"
        assert await tools.out(bus, "cat sub/file; stat -c %u sub/file") == "three\n64000\n"

    world.house.operate(test)
    assert (world.house.home.workspace("travel") / "sub/file").read_bytes() == b"three\n"


def test_a_plugin_is_called_from_inside_in_its_own_session(world):
    async def test(bus):
        body = ExecRequest("kv set place Lisbon && kv get place; kv get nothing")
        done = await bus.call("sandbox.exec", body, agent="travel", session="s-1", ttl_s=60)
        assert done.stdout == b"OK\nLisbon\n"
        assert done.exit_code == 1, done

    world.house.operate(test)
    log = auditlog.records_backwards(world.house.home.audit_log, 1 << 22)
    calls = [(r.agent, r.session) for r in log if r.tool == "kv" and r.phase == "finished"]
    assert calls == [("travel", "s-1")] * 3


def test_a_timeout_kills_the_whole_tree(world, tools):
    tree = "sleep 8811 & setsid sleep 8812 & (setsid sh -c 'sleep 8813 &' &); sleep 8814"

    async def test(bus):
        running = asyncio.create_task(tools.bash(bus, tree, timeout_s=10))
        async with asyncio.timeout(60):
            while (await tools.bash(bus, "pgrep -cf '^sleep 881'")).stdout != b"4\n":
                assert not running.done(), "control: they ran"
        assert (await running).exit_code == 124
        assert (await tools.bash(bus, "pgrep -f '^sleep 881'")).exit_code == 1

    world.house.operate(test)


# --- who is the executor ----------------------------------------------------------------------------------


def test_a_process_inside_is_not_taken_for_the_executor(world, tools):
    async def test(bus):
        for _ in range(2):
            assert await tools.out(bus, f"python3 -c '{IMPOSTOR}'") == "refused\n"
        assert await tools.out(bus, "echo still there") == "still there\n"

    world.house.operate(test)
    assert "is not the executor" in world.house.log("sandbox")


@pytest.mark.parametrize("agent", ["travel", "root"])
def test_the_executor_can_not_be_stopped_or_ended_from_inside(world, agent, tools):
    async def test(bus):
        await tools.out(bus, "true", agent)
        was = world.inspect(agent, "{{.Id}}")
        assert await tools.out(bus, "kill -STOP 1; kill -9 1; echo alive", agent) == "alive\n"
        assert await tools.out(bus, "sleep 100 & kill $!; wait; echo others can", agent) == "others can\n"
        assert world.inspect(agent, "{{.Id}}") == was

    world.house.operate(test)


def test_an_agent_that_stops_the_executor_does_not_get_its_place(world, tools):
    """Where no filter stops it. The service crashes, so that the container would be taken up again: it's
    replaced instead."""
    workspace = world.house.home.workspace("loose")

    async def before(bus):
        await tools.out(bus, "echo kept > kept; echo gone > /tmp/gone", "loose")
        running = asyncio.create_task(tools.bash(bus, f"python3 -c '{USURPER}'", "loose"))
        async with asyncio.timeout(60):
            while not (workspace / "stopped").exists():
                await asyncio.sleep(0.05)
        world.house.kill("sandbox")
        with pytest.raises(BeigeError) as caught:
            await running
        assert caught.value.executed == "maybe"

    async def after(bus):
        assert await tools.out(bus, "cat kept; ls admitted /tmp/gone; echo ok", "loose") == "kept\nok\n"

    world.house.operate(before)
    was = world.inspect("loose", "{{.Id}}")
    world.start_sandbox()
    world.house.operate(after)
    assert world.inspect("loose", "{{.Id}}") != was
    assert "runsc-loose does not tell who dials" in world.house.log("sandbox")


# --- profiles and limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["narrow", "wide"])
def test_egress_works(world, agent, tools):
    async def test(bus):
        assert await tools.out(bus, f"curl -sS http://{world.site.place}/", agent) == "hello from outside"
        denied = await tools.out(bus, "curl -sS http://elsewhere.example/", agent)
        assert f'agents.{agent}.sandbox.egress.allow: "elsewhere.example:80"' in denied
        shut = await tools.bash(bus, f"curl --noproxy '*' -sS http://127.0.5.1:{world.site.port}/", agent)
        assert shut.exit_code == 7, "no way but the proxy"

    world.house.operate(test)


def test_open_in_gvisor_has_a_root_layer_of_its_own(world, tools):
    async def test(bus):
        script = (
            "cat /proc/version; cp /bin/echo /tmp/say && /tmp/say ran; echo x > $HOME/file && cat $HOME/file"
        )
        assert await tools.out(bus, script, "wide") == f"{KERNEL}ran\nx\n"

    world.house.operate(test)
    assert world.inspect("wide", "{{.HostConfig.Runtime}} {{.HostConfig.ReadonlyRootfs}}") == "runsc false"


def test_root_inside_changes_files_of_its_container_alone(world, tools):
    async def test(bus):
        script = "id -u; echo x > /usr/bin/new && chown 64000 /usr/bin/new && stat -c %u /usr/bin/new"
        assert await tools.out(bus, script, "root") == "0\n64000\n"
        assert (await tools.bash(bus, "ls /usr/bin/new", "wide")).exit_code == 2

    world.house.operate(test)


def test_an_image_without_the_executor_works_by_docker_exec(world, tools):
    async def test(bus):
        seen = await tools.bash(bus, "cat; cat /proc/version", "foreign", stdin=b"given\n")
        assert seen.stdout == b"given\n" + KERNEL.encode()
        assert (await tools.bash(bus, "sleep 8821 & sleep 8822", "foreign", timeout_s=3)).exit_code == 124
        assert (await tools.bash(bus, "pgrep -f '^sleep 882'", "foreign")).exit_code == 1
        with pytest.raises(NotFound, match="no such program"):
            await bus.call("sandbox.exec", ExecRequest(argv=["nope"]), agent="foreign", ttl_s=60)

    world.house.operate(test)


def test_a_workspace_with_a_size_stops_the_agent_that_fills_it(world, tools):
    async def test(bus):
        filled = await tools.bash(bus, "head -c 64m /dev/zero > big", "full")
        assert filled.exit_code != 0
        assert b"No space left on device" in filled.stderr
        assert b"the workspace is full" in filled.stderr
        with pytest.raises(Failed, match="the workspace is full"):
            await bus.call("sandbox.write", WriteRequest("new", b"x" * 400_000), agent="full", ttl_s=60)
        assert (
            await tools.out(bus, "rm big; echo again > new; cat new; cat /proc/version", "full")
            == f"again\n{KERNEL}"
        )

    world.house.operate(test)
    assert world.house.log("sandbox").count("full: the workspace is full") == 1


@pytest.mark.parametrize(
    "hog",
    ["python3 -c 'x = bytearray(1 << 30)'", "bomb() { bomb | bomb & }; bomb; sleep 60"],
    ids=["memory", "forks"],
)
def test_a_limit_ends_the_container_and_the_next_call_has_another(world, hog, tools):
    async def test(bus):
        await tools.out(bus, "echo kept > kept")
        with pytest.raises(Failed, match=r"was lost: the container (ran out of memory|ended)") as caught:
            await tools.bash(bus, hog, timeout_s=90)
        assert caught.value.executed == "maybe"
        assert await tools.out(bus, "cat kept") == "kept\n"

    world.house.operate(test)


def test_a_gvisor_without_sockets_is_refused_with_what_it_lacks(world, tools):
    async def test(bus):
        with pytest.raises(Failed, match=r"--host-uds=open") as caught:
            await tools.bash(bus, "true", "deaf")
        assert caught.value.executed == "no"

    world.house.operate(test)


# --- what verify and doctor say ---------------------------------------------------------------------------

ALWAYS = "executor-private cgroup-memory cgroup-pids cgroup-cpu"
LEFT_OUT = {
    # test_a_limit_ends_the_container_and_the_next_call_has_another
    "travel": "abuse-forks abuse-memory",
    "root": "privilege-tools tmp-noexec home-size set-id-files engine-files mknod proc-write cgroup-write",
    "foreign": "environment first-process-inside executor-closed executor-signals victims seccomp mknod vsock"
    " kernel-crypto uevents user-namespace ptrace process-memory pidfd-getfd io-uring keyctl userfaultfd"
    " perf-event file-handles setns",
}
FAILED = {"travel": [], "root": ["package-managers"], "foreign": []}
"""`root` has the sealed image, where the profile open expects some."""


def test_every_probe_passes_that_says_something_in_gvisor(world):
    async def verified(bus, agent):
        seen = {}
        body = VerifyRequest(agent == "travel")
        async with bus.open("sandbox.verify", body, agent=agent, ttl_s=200) as stream:
            async for result in stream:
                seen[result.id] = result
            report = await stream.result()
        left_out = {*ALWAYS.split(), *LEFT_OUT[agent].split()}
        assert (report.failed, set(report.skipped)) == (FAILED[agent], left_out), [
            (agent, name, seen[name].expected, seen[name].seen) for name in report.failed
        ]
        assert report.runtime == "runsc"

    async def test(bus):
        async with asyncio.TaskGroup() as group:
            for agent in LEFT_OUT:
                group.create_task(verified(bus, agent))

    world.house.operate(test)


def test_list_and_show_name_the_runtime_of_each_container(world, tools):
    async def test(bus):
        await asyncio.gather(*(tools.out(bus, "true", name) for name in ("travel", "plain")))
        listed = (await bus.call("sandbox.list", Empty(), ttl_s=60)).sandboxes
        runtimes = {info.agent: info.runtime for info in listed}
        assert (runtimes["travel"], runtimes["plain"], runtimes["deaf"]) == ("runsc", "runc", "")
        shown = await bus.call("sandbox.show", AgentRef(), agent="travel", ttl_s=60)
        assert shown.runtime == "runsc"
        assert [flag.name for flag in shown.flags if flag.differs] == []

    world.house.operate(test)


def test_doctor_names_the_runtime_of_each_agent_and_what_it_lacks(world):
    plain = {"PATH": os.environ["PATH"], "DOCKER_HOST": world.engine.host}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "beige.cli", "doctor", "--json"],
        env=environment.helper(world.house.home, plain), cwd="/",
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    said = {
        finding["text"].partition(":")[0]: (finding["verdict"], finding["text"])
        for finding in json.loads(done.stdout)
        if finding["what"] == "runtime"
    }
    taken = 'travel: runsc (gVisor, since the engine lists it (runtime: "runc" declines it))'
    assert said["travel"] == ("ok", taken)
    assert said["plain"] == ("ok", "plain: runc (configured)")
    verdicts = [said[name][0] for name in ("wide", "loose", "deaf")]
    assert verdicts == ["ok", "warning", "broken"]
    assert '"--host-uds=open"' in said["deaf"][1] and '"--oci-seccomp"' in said["loose"][1]


PLAIN_FAILS = (
    "root-flag cap-drop nnp-flag seccomp-profile user mounts memory-limit pids-limit host-limits ulimits"
    " tmpfs uid gid root-mount writable-directories engine-files tmp-noexec tmp-size home-size hard-link"
    " mknod chroot first-process-inside file-size environment"
).split()
"""What gVisor does not do of its own accord."""
DRIVER = """
import json, subprocess, sys
done = [subprocess.run(argv, capture_output=True, timeout=60) for argv in json.load(sys.stdin)]
print(json.dumps([[one.returncode, one.stdout.decode("latin-1")] for one in done]))
"""


def test_the_same_probes_fail_in_a_plain_gvisor(world, engine, sandbox_image):
    sandbox = load(world.house.home).agents["travel"].sandbox.model_copy(update={"runtime": "runsc"})
    spec = container_spec("travel", sandbox, world.house.home, seccomp_profile("seccomp.json"))
    home = str(world.house.home.root)
    facts = Facts(spec.body, base_environment("travel", sandbox), True, "runsc", home, home)
    expected = probes_gvisor.changes(facts)
    inside = [probe for probe in INSIDE if probe.id in PLAIN_FAILS]
    flags = ("--rm", "--detach", "--runtime=runsc", "--network=none", "--user=0")
    plain = engine.docker("run", *flags, sandbox_image, "sleep", "infinity").stdout.strip()
    try:
        (inspected,) = json.loads(engine.docker("inspect", plain).stdout)
        inspected["Cgroup"] = cgroups.limits(inspected["State"]["Pid"])
        scripts = json.dumps([probe.argv(facts) for probe in inside])
        run = ("exec", "-i", "--workdir=/workspace", plain, "python3", "-I", "-c", DRIVER)
        done = json.loads(engine.docker(*run, text=scripts).stdout)
    finally:
        engine.docker("rm", "--force", plain)
    verdicts = {probe.id: judge_outside(probe, facts, inspected, expected) for probe in OUTSIDE}
    for probe, (code, out) in zip(inside, done, strict=True):
        verdicts[probe.id] = judge_inside(probe, facts, code, out.encode("latin-1"), expected)
    assert [name for name in PLAIN_FAILS if verdicts[name].status != "fail"] == []
