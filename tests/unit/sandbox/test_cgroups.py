"""The kernel's limits of a process, from trees as cgroup version 1, 2 and a mixed system have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.sandbox.cgroups import limits

LIMITED = {"memory": "134217728", "processes": "64", "processors": "0.50"}
V1 = {
    "memory/docker/ID/memory.limit_in_bytes": "134217728",
    "pids/docker/ID/pids.max": "64",
    "cpu/docker/ID/cpu.cfs_quota_us": "50000",
    "cpu/docker/ID/cpu.cfs_period_us": "100000",
}
V1_OF = "5:pids:/docker/ID\n4:memory:/docker/ID\n2:cpu,cpuacct:/docker/ID\n1:name=systemd:/docker/ID\n"
V2 = {
    "cgroup.controllers": "cpu memory pids",
    "system.slice/docker-ID.scope/memory.max": "134217728",
    "system.slice/docker-ID.scope/pids.max": "64",
    "system.slice/docker-ID.scope/cpu.max": "50000 100000",
}
V2_OF = "0::/system.slice/docker-ID.scope\n"
FREE = {name: "max 100000" if name.endswith("cpu.max") else "max" for name in V2}


def system(tmp_path: Path, of: str, files: dict[str, str]) -> dict[str, Path]:
    place = tmp_path / "proc/70/cgroup"
    for path, text in {
        place: of,
        **{tmp_path / "cgroup" / name: text for name, text in files.items()},
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith("\n") else f"{text}\n")
    return {"proc": tmp_path / "proc", "root": tmp_path / "cgroup"}


@pytest.mark.parametrize(
    ("of", "files", "expected"),
    [
        pytest.param(V1_OF, V1, LIMITED, id="version 1"),
        pytest.param(f"{V1_OF}0::/docker/ID\n", V1, LIMITED, id="mixed"),
        pytest.param(V2_OF, V2, LIMITED, id="version 2"),
        pytest.param(
            V2_OF, FREE, {"memory": "max", "processes": "max", "processors": "no limit"}, id="no limit"
        ),
    ],
)
def test_limits_are_read(tmp_path: Path, of: str, files: dict[str, str], expected: dict[str, str]) -> None:
    assert limits(70, **system(tmp_path, of, files)) == expected


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    places = system(tmp_path, V1_OF, {name: text for name, text in V1.items() if "pids" not in name})
    with pytest.raises(FileNotFoundError):
        limits(70, **places)


def test_a_process_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        limits(71, **system(tmp_path, V1_OF, V1))


def test_version_1_says_no_limit_with_a_negative_quota(tmp_path: Path) -> None:
    files = {**V1, "cpu/docker/ID/cpu.cfs_quota_us": "-1"}
    assert limits(70, **system(tmp_path, V1_OF, files))["processors"] == "no limit"
