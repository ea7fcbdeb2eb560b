"""An agent that dials the executor's socket itself."""

from __future__ import annotations

import asyncio

import pytest

pytestmark = pytest.mark.docker

IMPOSTOR = """
import socket, struct, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(10)
s.connect("/run/beige/exec.sock")
try:
    s.sendall(struct.pack("<IBI", 13, 20, 0) + struct.pack("<II", 1, 1))
    answer = s.recv(1)
except (BrokenPipeError, ConnectionResetError):
    answer = b""
print("refused" if answer == b"" else "admitted")
"""


def test_an_agent_process_is_refused_and_the_executor_not_disturbed(house, tools):
    """The refusal comes while the impostor's own command runs over the real executor's connection: were
    that replaced, its output would be lost."""

    async def test(bus):
        for _ in range(3):
            result = await tools.bash(bus, "python3 -", stdin=IMPOSTOR.encode())
            assert (result.exit_code, result.stdout) == (0, b"refused\n")
        assert await tools.out(bus, "echo still there") == "still there\n"

    house.operate(test)
    assert "is not the executor" in house.log("sandbox")


def test_a_flood_of_dials_stops_no_other_agent(house, tools):
    """The other's calls all end while the flood goes on: it is told to stop only then."""
    flood = """
import os, socket, time
end = time.monotonic() + 60
while not os.path.exists("enough") and time.monotonic() < end:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(1)
    try:
        s.connect("/run/beige/exec.sock")
    except OSError:
        pass
    s.close()
print(os.path.exists("enough"))
"""

    async def test(bus):
        await tools.out(bus, "true", "other")
        flooding = asyncio.create_task(tools.bash(bus, "python3 -", stdin=flood.encode()))
        for _ in range(20):
            await tools.out(bus, "true", "other")
        await tools.out(bus, "touch enough")
        assert (await flooding).stdout == b"True\n"

    house.operate(test)


def test_the_socket_directory_can_not_be_changed_from_inside(house, tools):
    async def test(bus):
        command = "cd /run/beige; rm -f exec.sock; ln -s /x gateway.sock; mv exec.sock y; touch z"
        result = await tools.bash(bus, command)
        assert result.stderr.count(b"Read-only file system") == 4, result.stderr

    house.operate(test)
