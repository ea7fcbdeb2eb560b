"""Which container is kept, which is replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.sandbox.containers import Plan, memory_kills, plan
from services.sandbox.engine import Container

RUNNING = Container(
    id="c" * 64, name="beige-0-a", home="h", agent="a", spec="s1", state="running", pid=7, image="i",
    image_id="sha256:1", created="", exit_code=0, oom_killed=False, runtime="runc",
)  # fmt: skip

CASES = [
    pytest.param(None, Plan.CREATE, id="none"),
    pytest.param(RUNNING, Plan.ADOPT, id="as wanted"),
    pytest.param(replace(RUNNING, spec="s2"), Plan.ADOPT, id="as wanted, the fallback"),
    pytest.param(replace(RUNNING, spec="s0"), Plan.REPLACE, id="made from another config"),
    pytest.param(replace(RUNNING, spec=""), Plan.REPLACE, id="without our label"),
    pytest.param(replace(RUNNING, image_id="sha256:0"), Plan.REPLACE, id="the image was built again"),
    pytest.param(replace(RUNNING, state="exited"), Plan.REPLACE, id="exited"),
    pytest.param(replace(RUNNING, state="created"), Plan.REPLACE, id="never started"),
    pytest.param(replace(RUNNING, state="paused"), Plan.REPLACE, id="paused"),
    pytest.param(replace(RUNNING, state="dead"), Plan.REPLACE, id="dead"),
]


@pytest.mark.parametrize(("found", "expected"), CASES)
def test_a_container_is_kept_only_if_it_is_what_we_would_make(
    found: Container | None, expected: Plan
) -> None:
    assert plan(found, frozenset({"s1", "s2"}), "sha256:1") is expected


@pytest.mark.parametrize(
    ("events", "count"),
    [
        pytest.param("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n", 2, id="cgroup v2"),
        pytest.param("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5, id="cgroup v1"),
        pytest.param("oom_kill 99999999999999999999\noom_kill x\n", 0, id="nonsense"),
        pytest.param("", 0, id="not readable"),
    ],
)
def test_kills_for_memory_are_counted(events: str, count: int) -> None:
    assert memory_kills(events) == count
