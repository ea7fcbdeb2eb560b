"""The gateway under supervisord: a taken port stops nothing else, and a restart by API comes back."""

import json
import os
import socket
import subprocess
import sys

import httpx
import pytest

from beige.supervisor import environment, lifecycle
from beige.supervisor.control import Control
from beige.testing import short_home
from tests.processes.gateway_stage import config, until

PLAIN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def beige(home, *arguments):
    return subprocess.run(
        [sys.executable, "-P", "-m", "beige.cli", *arguments],
        env=environment.minimal(home, PLAIN), cwd="/", capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.fixture
def furnished():
    """A home whose gateway wants a port that is taken; and the socket that has it."""
    with short_home() as home, socket.create_server(("127.0.0.1", 0)) as taken:
        home.config.write_text(json.dumps(config(port=taken.getsockname()[1])))
        for name in ("quick", "slow"):
            (home.root / f"{name}.json5").write_text('[{ say: "hello" }]')
        try:
            yield home, taken
        finally:
            lifecycle.down(home)


def pid(home):
    return next(p.pid for p in Control(home).processes() if p.program == "gateway")


def test_a_taken_port_is_said_everywhere_and_stops_nothing_else(furnished):
    home, taken = furnished
    told = "can't listen at 127.0.0.1:"
    up = beige(home, "up", "--no-build")
    assert up.returncode == 0, up.stderr
    assert f"beige: gateway: {told}" in up.stderr
    status = beige(home, "status", "--json")
    services = {service["name"]: service for service in json.loads(status.stdout)["services"]}
    assert (status.returncode, services["gateway"]["ok"]) == (0, True)
    assert told in services["gateway"]["description"]
    findings = json.loads(beige(home, "doctor", "--json").stdout)
    assert [f["verdict"] for f in findings if f["what"] == "gateway"] == ["warning"]
    assert beige(home, "prompt", "travel", "hi").stdout == "hello\n", "the command line needs no gateway"

    taken.close()
    until(home.http_address.exists, "it serves once the port is free")
    assert "description" not in next(
        s for s in json.loads(beige(home, "status", "--json").stdout)["services"] if s["name"] == "gateway"
    )
    before, token = pid(home), home.http_token.read_text().strip()
    url, headers = home.http_address.read_text().strip(), {"authorization": f"Bearer {token}"}
    assert httpx.post(f"{url}/api/gateway/restart", headers=headers, trust_env=False).status_code == 202
    until(lambda: pid(home) not in (0, before) and home.http_address.exists(), "another process serves")
    assert httpx.get(f"{url}/api/agents", headers=headers, trust_env=False).status_code == 200
