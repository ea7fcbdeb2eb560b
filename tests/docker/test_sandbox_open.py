"""The profile open on real containers: walls kept, walls opened; and the way out, of both profiles.

Agents: `user` and `root` (root inside) have egress, `shut` has none, `narrow` is sealed with egress,
`bridged` is on the engine's own bridge.
"""

from __future__ import annotations

import json
import socket
import subprocess

import pytest

from beige import auditlog
from beige.config import load
from beige.messages.base import AgentRef
from beige.messages.sandbox import ExecRequest, VerifyRequest
from services.sandbox import cgroups
from services.sandbox.probes import Facts, LeftOut, chosen, judge_inside, judge_outside
from services.sandbox.probes_inside import INSIDE
from services.sandbox.probes_open import changes
from services.sandbox.probes_outside import OUTSIDE
from services.sandbox.service import seccomp_profile
from services.sandbox.spec import base_environment, container_spec
from tests.simulator.internet import Internet, answer, read_head

pytestmark = pytest.mark.docker
PROBES = {probe.id: probe for probe in chosen((*OUTSIDE, *INSIDE), abuse=False)}
SMALL = {"profile": "open", "memory": "256m", "tmpSize": "32m", "pids": 64}
LEFT_OUT = {
    "user": {"privilege-tools", "tmp-noexec", "home-size"},
    "root": {"privilege-tools", "tmp-noexec", "home-size", "set-id-files", "engine-files"},
    "narrow": set(),
    "bridged": {"privilege-tools", "tmp-noexec", "home-size", "addresses", "routes", "no-way-out"},
}


def page(connection):
    read_head(connection)
    connection.sendall(answer(b"hello from outside"))


class World:
    def __init__(self, house, internet, site):
        self.house, self.internet, self.site = house, internet, site

    def records(self):
        found = list(auditlog.records_backwards(self.house.home.audit_log, 1 << 22))
        return list(reversed(found))


@pytest.fixture(scope="module")
def world(make_house, sandbox_image, open_image, tools):
    """A house whose internet has one site, `web.example`, which agents but `shut` may reach."""
    with make_house({}) as house, Internet(house.home) as internet:
        site = internet.site("web.example", page)
        way = {"egress": {"allow": [site.place]}}
        agents = {
            "user": tools.agent(open_image, **SMALL, **way),
            "root": tools.agent(open_image, **SMALL, **way, root=True),
            "shut": tools.agent(open_image, **SMALL),
            "bridged": tools.agent(open_image, **SMALL, network="bridge"),
            "narrow": tools.agent(sandbox_image, **way),
        }
        for name in ("sandbox", "policy"):
            house.stop(name)
        tools.write_config(house.home, agents)
        house.start("policy")
        internet.start(house)
        house.start("bridge")
        house.start("sandbox")
        yield World(house, internet, site)


@pytest.mark.parametrize("agent", LEFT_OUT)
def test_every_probe_passes_that_holds_for_the_profile(world, agent):
    seen = {}

    async def test(bus):
        async with bus.open("sandbox.verify", VerifyRequest(), agent=agent, ttl_s=150) as stream:
            async for result in stream:
                seen[result.id] = result
            report = await stream.result()
        assert (report.failed, set(report.skipped)) == ([], LEFT_OUT[agent]), [
            (seen[name].expected, seen[name].seen) for name in report.failed
        ]

    world.house.operate(test)
    assert set(seen) == set(PROBES)


def test_the_bridge_is_a_hole_that_is_logged_and_others_have_not(world, tools):
    """Both knock at a listener of the test's own, at the address that the bridge has on this machine."""

    async def test(bus):
        await bus.call("sandbox.ensure", AgentRef(), agent="bridged", ttl_s=60)
        inspected = ("inspect", "--format", "{{.NetworkSettings.Gateway}}", world.house.container("bridged"))
        with socket.socket() as server:
            server.bind((tools.docker(*inspected), 0))
            server.listen()
            place = "{}/{}".format(*server.getsockname())
            knock = ExecRequest(f"exec 3<>/dev/tcp/{place} && echo reached", timeout_s=20)
            said = [await bus.call("sandbox.exec", knock, agent=a, ttl_s=60) for a in ("bridged", "shut")]
        assert [one.stdout for one in said] == [b"reached\n", b""]
        assert b"unreachable" in said[1].stderr

    world.house.operate(test)
    assert "bridged is on the engine's bridge" in world.house.log("sandbox")
    assert "shut is on the engine's bridge" not in world.house.log("sandbox"), "control"


def test_a_bridge_is_warned_of_again_by_the_service_that_finds_its_container(world, tools):
    def warnings():
        return world.house.log("sandbox").count("bridged is on the engine's bridge")

    async def ensure(bus):
        await bus.call("sandbox.ensure", AgentRef(), agent="bridged", ttl_s=60)

    identity = ("inspect", "--format", "{{.Id}} {{.State.Pid}}", world.house.container("bridged"))
    world.house.operate(ensure)
    warned, was = warnings(), tools.docker(*identity)
    world.house.kill("sandbox")
    world.house.start("sandbox")
    world.house.operate(ensure)
    assert tools.docker(*identity) == was, "it was found, not made"
    assert warnings() == warned + 1
    assert "shut is on the engine's bridge" not in world.house.log("sandbox"), "control"


def test_show_tells_what_is_in_a_root_layer_that_no_quota_bounds(world, tools):
    async def shown(bus, agent):
        await bus.call("sandbox.ensure", AgentRef(), agent=agent, ttl_s=60)
        return (await bus.call("sandbox.show", AgentRef(), agent=agent, ttl_s=60)).root_layer_bytes

    async def test(bus):
        before = await shown(bus, "user")
        await tools.out(
            bus, "head -c 3M /dev/urandom > ~/filled; head -c 5M /dev/zero > /tmp/elsewhere", "user"
        )
        after = await shown(bus, "user")
        assert 3 << 20 <= after - before < 4 << 20
        assert await shown(bus, "narrow") is None, "sealed: there is none to fill"
        limits = (await bus.call("sandbox.show", AgentRef(), agent="narrow", ttl_s=60)).limits
        assert (limits["connections"], limits["transferSize"], limits["idleS"]) == ("32", "4g", "300.0")
        await tools.out(bus, "rm ~/filled", "user")

    world.house.operate(test)


# --- the negative control -------------------------------------------------------------------------------

PLAIN_FAILS = (
    "cap-drop nnp-flag seccomp-profile user mounts propagation memory-limit swap-limit cpu-limit pids-limit"
    " host-limits ulimits oom tmpfs shm log first-process specification environment capabilities"
    " no-new-privileges writable-directories mounts-inside tmp-size hard-link mknod packet-socket raw-socket"
    " uevents chroot ptrace ptrace-executor first-process-inside executor-closed executor-private victims"
    " file-size cgroup-memory cgroup-pids cgroup-cpu"
).split()
"""What Docker does not do of its own accord, nor the profile open undo."""
DRIVER = """
import json, subprocess, sys
done = [subprocess.run(argv, capture_output=True, timeout=60) for argv in json.load(sys.stdin)]
print(json.dumps([[one.returncode, one.stdout.decode("latin-1")] for one in done]))
"""


@pytest.fixture(scope="module")
def plain(open_image, tools):
    made = tools.docker(
        "create", "--label=beige.test=open", "--network=none", "--user=0", open_image, "sleep", "infinity"
    )
    tools.docker("start", made)
    yield made
    tools.docker("rm", "--force", made)


@pytest.mark.parametrize(("agent", "seccomp"), [("user", "seccomp.json"), ("root", "seccomp-root.json")])
def test_the_same_probes_fail_on_a_container_without_the_walls(world, plain, tools, agent, seccomp):
    sandbox = load(world.house.home).agents[agent].sandbox
    spec = container_spec(agent, sandbox, world.house.home, seccomp_profile(seccomp))
    home = str(world.house.home.root)
    facts = Facts(
        spec.body, base_environment(agent, sandbox), True, "runc", home, home, "open", agent == "root"
    )
    expected = changes(facts)
    (inspected,) = json.loads(tools.docker("inspect", plain))
    inspected["Cgroup"] = cgroups.limits(inspected["State"]["Pid"])
    inside = [p for p in INSIDE if p.id in PROBES and not isinstance(expected.get(p.id), LeftOut)]
    scripts = json.dumps([probe.argv(facts) for probe in inside])
    done = subprocess.run(
        ["docker", "exec", "-i", "--workdir=/workspace", plain, "python3", "-I", "-c", DRIVER],
        input=scripts, capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    verdicts = {probe.id: judge_outside(probe, facts, inspected, expected) for probe in OUTSIDE}
    for probe, (code, out) in zip(inside, json.loads(done.stdout), strict=True):
        verdicts[probe.id] = judge_inside(probe, facts, code, out.encode("latin-1"), expected)
    assert [name for name in PLAIN_FAILS if verdicts[name].status != "fail"] == []


# --- the way out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["user", "root", "narrow"])
def test_an_allowed_site_is_reached_and_the_record_has_session_and_parent(world, agent, tools):
    async def test(bus):
        body = ExecRequest(f"curl -sS http://{world.site.place}/")
        result = await bus.call("sandbox.exec", body, agent=agent, session="s-1", ttl_s=90)
        assert result.stdout == b"hello from outside", result

    world.house.operate(test)
    mine = [r for r in world.records() if r.agent == agent and r.session == "s-1"]
    (command,) = {r.id for r in mine if r.tool == "exec"}
    connected = [r for r in mine if r.type == "egress"]
    assert [(r.args, r.phase, r.parent) for r in connected] == [
        ([world.site.place, "GET"], "started", command),
        ([world.site.place, "GET"], "finished", command),
    ]
    assert connected[1].output_bytes > 0


def test_a_denial_is_told_to_the_program_with_the_rule_to_add(world, tools):
    async def test(bus):
        result = await tools.bash(bus, "curl -sS https://elsewhere.example/", "user")
        assert result.exit_code != 0
        assert b"403" in result.stderr
        said = await tools.out(bus, "curl -s http://elsewhere.example/ || true", "user")
        assert 'agents.user.sandbox.egress.allow: "elsewhere.example:80"' in said

    world.house.operate(test)


def test_without_egress_there_is_no_socket_no_relay_and_no_variable(world, tools):
    async def test(bus):
        script = (
            "ls -l /run/beige/egress.sock; env | grep -ci proxy; pgrep -c relay; "
            f"curl -sS --max-time 5 -x http://127.0.0.1:3128 http://{world.site.place}/; "
            f"curl -sS --max-time 5 http://{world.site.place}/"
        )
        result = await tools.bash(bus, script, "shut")
        assert result.stdout == b"0\n0\n"
        assert result.stderr.count(b"curl: (") == 2
        assert b"No such file" in result.stderr

    world.house.operate(test)


def test_another_agents_socket_is_not_there(world, tools):
    """Its own leads to its own list: the control is the same request by the agent that may."""

    async def test(bus):
        script = f"ls /run/beige/ {world.house.home.run}/agents 2>&1; find / -name egress.sock 2>/dev/null"
        seen = await tools.bash(bus, script, "shut")
        assert b"egress.sock" not in seen.stdout
        found = await tools.bash(bus, "test -S /run/beige/egress.sock && echo there", "narrow")
        assert found.stdout == b"there\n"

    world.house.operate(test)


def test_a_killed_relay_comes_back(world, tools):
    async def test(bus):
        await tools.out(bus, "pkill -9 -x relay", "user")
        once = f"curl -s http://{world.site.place}/ && exit"
        script = f"for n in $(seq 300); do {once}; sleep 0.1; done; exit 1"
        assert await tools.out(bus, script, "user") == "hello from outside"

    world.house.operate(test)


def test_nothing_but_the_proxy_leads_out(world, tools):
    dial = f'import socket; socket.create_connection(("127.0.5.1", {world.site.port}), 5)'
    script = f"python3 -c '{dial}' 2>&1 | tail -1; getent hosts web.example; echo $?"

    async def test(bus):
        for agent in ("user", "root"):
            seen = await tools.out(bus, script, agent)
            assert "refused" in seen and seen.endswith("2\n"), seen

    before = world.site.connections
    world.house.operate(test)
    assert world.site.connections == before


# --- what open opens ------------------------------------------------------------------------------------


def test_the_root_layer_can_be_written_by_root_and_is_gone_with_the_container(world, tools):
    async def test(bus):
        await tools.out(bus, "echo x >/usr/local/bin/left; echo y >/workspace/kept", "root")
        await bus.call("sandbox.remove", AgentRef(), agent="root", ttl_s=60)
        seen = await tools.out(bus, "test -e /usr/local/bin/left; echo $?; cat /workspace/kept", "root")
        assert seen == "1\ny\n"
        result = await tools.bash(bus, "echo x >/usr/local/bin/left", "user")
        assert b"Permission denied" in result.stderr

    world.house.operate(test)


def test_programs_run_in_tmp_and_home(world, tools):
    async def test(bus):
        script = "for d in /tmp $HOME; do cp /bin/echo $d/say && $d/say $d; done"
        assert await tools.out(bus, script, "user") == "/tmp\n/home/agent\n"

    world.house.operate(test)


def test_files_work_for_an_agent_that_is_root(world, tools):
    async def test(bus):
        from beige.messages.sandbox import ReadRequest, WriteRequest

        await bus.call("sandbox.write", WriteRequest("a.txt", b"text"), agent="root", ttl_s=60)
        read = await bus.call("sandbox.read", ReadRequest("a.txt"), agent="root", ttl_s=60)
        assert read.content == b"text"

    world.house.operate(test)
