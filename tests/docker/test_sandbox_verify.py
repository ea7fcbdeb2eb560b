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
from services.sandbox.containers import Sandbox
from services.sandbox.probes import Facts, Inside, chosen, judge_inside, judge_outside, left_out
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
        env=environment.minimal(home, PLAIN), cwd="/", capture_output=True, text=True, timeout=120, check=False,
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
