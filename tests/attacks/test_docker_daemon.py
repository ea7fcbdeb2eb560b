"""Threat: an agent that reaches the Docker daemon, which would make it root on the host.

The careless container has a socket where Docker's would be, with a listener of ours behind it.
"""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.docker

PLACES = "/var/run/docker.sock /run/docker.sock /run/containerd/containerd.sock /run/podman/podman.sock"
PING = """
import http.client, socket
for path in {places!r}.split():
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(path)
        except OSError as error:
            continue
        s.sendall(b"GET /_ping HTTP/1.0\\r\\n\\r\\n")
        print(path, s.recv(4096).decode().splitlines()[0])
"""
SOCKETS = """python3 -c '
import os, stat
for top, directories, names in os.walk("/"):
    directories[:] = [d for d in directories if os.path.join(top, d) not in ("/proc", "/sys", "/usr")]
    for name in names:
        path = os.path.join(top, name)
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            print(path)
'"""
"""Not `find -type s`, which believes the directory entry below a mounted file."""
LOOKS = {
    "a socket by its name": "find / -name '*docker*.sock' -o -name 'containerd*.sock' 2>/dev/null",
    "any socket": SOCKETS,
    "a mount of one": "grep -o 'docker.sock' /proc/mounts",
}


@pytest.mark.parametrize("command", LOOKS.values(), ids=LOOKS)
def test_no_socket_of_the_daemon_is_there(gateway, careless, command):
    assert "docker.sock" in careless.sh(command).out, "control"
    for inside in (gateway.travel, gateway.other, gateway.idle):
        assert inside.sh(command).out == ""


def test_the_daemon_does_not_answer(gateway, careless):
    attempt = PING.format(places=PLACES)
    assert "200 OK" in careless.python(attempt).out, "control"
    assert gateway.travel.python(attempt).out == ""


def test_no_client_no_group_and_no_address_of_it(gateway):
    assert gateway.travel.sh("type -P docker podman nerdctl ctr crictl runc").out == ""
    assert gateway.travel.sh("env | grep -i docker").out == ""
    assert gateway.travel.out("id -G") == "64000"


def test_the_daemons_socket_is_no_mount_of_any_container(gateway, careless):
    assert "docker.sock" in json.dumps(careless.inspect()["Mounts"]), "control"
    for agent in ("travel", "other", "idle"):
        assert "docker" not in json.dumps(gateway.inspect(agent)["Mounts"])


TCP = """
import socket
for port in (2375, 2376, 2377):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
        print("open", port)
    except OSError:
        pass
print("looked")
"""


def test_nor_over_loopback(gateway):
    """The sandbox's loopback is its own; test_network.py shows that the host's can't be reached."""
    assert gateway.travel.python(TCP).out == "looked\n"
