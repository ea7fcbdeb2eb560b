"""Threat: an agent that sends data out, or reaches services of the host or of other agents.

Nothing here addresses anything outside this machine: connecting a UDP socket sends no packet, TCP goes
to listeners of the test's own, and sockets of other families are created but never connected
(test_privileges.py has those).
"""

from __future__ import annotations

import contextlib
import socket

import pytest

pytestmark = pytest.mark.docker

SEEN = {
    "interfaces": ("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | tr '\\n' ' '", "lo "),
    "interfaces in sysfs": ("ls /sys/class/net", "lo\n"),
    "routes": ("tail -n +2 /proc/net/route | wc -l", "0\n"),
}


def test_the_engine_gave_it_no_network(gateway, careless):
    found = gateway.inspect("travel")
    assert found["HostConfig"]["NetworkMode"] == "none"
    assert set(found["NetworkSettings"]["Networks"]) <= {"none"}
    assert not any(network["IPAddress"] for network in found["NetworkSettings"]["Networks"].values())
    others = careless.inspect()["NetworkSettings"]["Networks"].values()
    assert any(network["IPAddress"] for network in others), "control"


@pytest.mark.parametrize(("command", "expected"), SEEN.values(), ids=SEEN)
def test_there_is_only_the_loopback_interface(gateway, careless, command, expected):
    assert careless.sh(command).out != expected, "control"
    for inside in (gateway.travel, gateway.other, gateway.idle):
        assert inside.sh(command).out == expected


ROUTE = """
import errno, socket
for family, address in {addresses!r}:
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        try:
            s.connect((address, 53))
        except OSError as error:
            print(errno.errorcode[error.errno])
        else:
            print("route")
"""


def test_no_resolver_can_be_asked(gateway, careless):
    """DNS fails because its server has no route; a connected UDP socket tells without sending."""
    listed = gateway.travel.out("grep -oE '^nameserver .*' /etc/resolv.conf | cut -d' ' -f2 || true").split()
    addresses = [(10 if ":" in one else 2, one) for one in [*listed, careless.host_address]]
    answers = set(gateway.travel.python(ROUTE.format(addresses=addresses)).out.split())
    assert answers <= {"ENETUNREACH", "EADDRNOTAVAIL"}
    control = careless.python(ROUTE.format(addresses=[(2, careless.host_address)]))
    assert control.out == "route\n", "control"


@contextlib.contextmanager
def listening(address):
    with socket.socket() as server:
        server.bind((address, 0))
        server.listen()
        server.settimeout(0.5)
        yield server


def accepted(server):
    try:
        server.accept()[0].close()
    except TimeoutError:
        return False
    return True


CONNECT = """
import socket
try:
    socket.create_connection(({host!r}, {port}), timeout=5).close()
except OSError as error:
    print("refused", error)
else:
    print("connected")
"""


def test_a_service_of_the_host_can_not_be_reached(gateway, careless):
    """At the address of the bridge that the careless container hangs on, and on the host's loopback."""
    with listening(careless.host_address) as server:
        attempt = CONNECT.format(host=careless.host_address, port=server.getsockname()[1])
        assert careless.python(attempt).out == "connected\n" and accepted(server), "control"
        assert gateway.travel.python(attempt).out.startswith("refused")
        assert not accepted(server)
    with listening("127.0.0.1") as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        assert accepted(server), "control"
        assert gateway.travel.python(CONNECT.format(host="127.0.0.1", port=port)).out.startswith("refused")
        assert not accepted(server)


SERVE = """
import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen()
print(s.getsockname()[1], flush=True)
open("/workspace/port", "w").write(str(s.getsockname()[1]))
s.settimeout(30)
s.accept()[0].sendall(b"from travel")
"""


def test_agents_can_not_talk_to_each_other(gateway):
    """A server on travel's loopback answers travel itself, and is not there for other."""
    gateway.travel.run("tee", "/workspace/serve.py", stdin=SERVE)
    gateway.travel.sh(
        "rm -f port; nohup python3 serve.py >/dev/null 2>&1 & while ! [ -s port ]; do sleep .05; done"
    )
    port = int(gateway.travel.out("cat port"))
    assert gateway.other.python(CONNECT.format(host="127.0.0.1", port=port)).out.startswith("refused")
    answer = f"import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(99))"
    assert gateway.travel.python(answer).out == "b'from travel'\n", "control"


ABSTRACT = """
import socket
with socket.socket(socket.AF_UNIX) as s:
    try:
        s.connect({name!r})
    except OSError as error:
        print("refused", error)
    else:
        print("connected")
"""


def test_abstract_unix_sockets_of_the_host_are_out_of_reach(gateway):
    """They belong to a network namespace, and many of the host's services have one."""
    name = f"\0beige-attack-{gateway.host_canary}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        server.settimeout(0.5)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name)
            assert accepted(server), "control"
        assert gateway.travel.python(ABSTRACT.format(name=name)).out.startswith("refused")
        assert not accepted(server)


def test_each_attempt_to_get_out_is_in_the_audit_log(gateway):
    with gateway.recorded() as records:
        assert gateway.travel.run("curl", "-s", "-m", "5", "http://127.0.0.1:9/").code != 0
    assert [(r["tool"], r["args"][0], r["decision"]) for r in records] == [("exec", "curl", "allowed")] * 2
