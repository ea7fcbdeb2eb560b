"""What the doctor says about runtimes and quotas."""

from __future__ import annotations

import os
from typing import Any

import pytest

from beige.cli.doctor_sandbox import sandboxes
from beige.cli.finding import Finding
from beige.config import Config
from beige.paths import Home

RUNC: dict[str, Any] = {"runc": {}}
DEAF: dict[str, Any] = {"runsc": {"path": "runsc"}}


def found(home: Home, listed: dict[str, Any] | None, **sandbox: Any) -> list[Finding]:
    agent = {"model": {"provider": "p", "model": "m"}, "tools": (), "sandbox": {"image": "i", **sandbox}}
    config = Config.model_validate({"llm": {"providers": {}}, "agents": {"travel": agent}})
    return list(sandboxes(home, config, listed))


def test_a_runtime_that_the_engine_does_not_list_is_broken(home: Home) -> None:
    runtime, _ = found(home, RUNC, runtime="runsc")
    assert (runtime.verdict, "daemon.json" in runtime.fix) == ("broken", True)


def test_a_gvisor_whose_sockets_do_not_work_is_named(home: Home) -> None:
    assert found(home, DEAF)[0].verdict == "warning"
    assert found(home, DEAF, runtime="runsc")[0].verdict == "broken"
    assert "--host-uds=open" in found(home, DEAF)[0].text


def test_a_gvisor_without_the_seccomp_profile_is_named(home: Home) -> None:
    def listed(*more: str) -> dict[str, Any]:
        return {"runsc": {"path": "runsc", "runtimeArgs": ["--host-uds=open", *more]}}

    finding = found(home, listed())[0]
    assert (finding.verdict, "--oci-seccomp" in finding.text) == ("warning", True)
    assert "--oci-seccomp" in finding.fix
    assert found(home, listed("--oci-seccomp"))[0].verdict == "ok"


def test_the_runtime_of_each_agent_is_said(home: Home) -> None:
    assert found(home, RUNC)[0] == Finding(
        "runtime", "ok", "travel: default (the engine's default; it lists no gVisor (runsc))"
    )
    assert [finding.what for finding in found(home, None)] == ["workspaces"]


def test_a_workspace_without_a_quota_is_named(home: Home) -> None:
    (finding,) = found(home, None)
    assert "no quota for travel" in finding.text


def test_a_root_layer_that_nothing_bounds_is_named(home: Home) -> None:
    workspaces, root = found(home, None, profile="open")
    assert (workspaces.what, root.what, root.verdict) == ("workspaces", "root layers", "ok")
    assert "no quota for what travel (profile open) write" in root.text


@pytest.mark.skipif(os.geteuid() != 0, reason="what root is told")
@pytest.mark.parametrize(("size", "verdict"), [("8m", "ok"), ("999999g", "warning")])
def test_more_than_the_disk_holds_is_a_warning(home: Home, size: str, verdict: str) -> None:
    (finding,) = found(home, None, workspaceSize=size)
    assert finding.verdict == verdict
