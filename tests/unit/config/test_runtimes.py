"""Which runtime a container gets, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from beige.config import SandboxConfig
from beige.config.runtimes import Runtime, runtime_for

RUNC: dict[str, Any] = {"runc": {"path": "runc"}, "io.containerd.runc.v2": {"path": "runc"}}
GVISOR = {**RUNC, "runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--network=none", "--host-uds=open"]}}
FULL: dict[str, Any] = {
    **RUNC,
    "runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--host-uds=open", "--oci-seccomp"]},
}
DEAF: dict[str, Any] = {**RUNC, "runsc": {"path": "/usr/bin/runsc"}}


def chosen(listed: dict[str, Any], **fields: Any) -> Runtime:
    return runtime_for(SandboxConfig.model_validate({"image": "i", **fields}), listed)


@pytest.mark.parametrize(
    ("listed", "fields", "name"),
    [
        pytest.param(RUNC, {}, None, id="none there"),
        pytest.param({}, {}, None, id="an engine that lists nothing"),
        pytest.param(GVISOR, {}, "runsc", id="sealed, gVisor there"),
        pytest.param(GVISOR, {"runtime": "runc"}, "runc", id="declined"),
        pytest.param(GVISOR, {"profile": "open"}, None, id="open"),
        pytest.param(DEAF, {}, None, id="sockets would not work"),
        pytest.param({"runsc": "?"}, {}, "runsc", id="described in another form"),
        pytest.param(RUNC, {"runtime": "runsc"}, "runsc", id="asked for, not there: the engine says no"),
    ],
)
def test_the_runtime(listed: dict[str, Any], fields: dict[str, Any], name: str | None) -> None:
    assert chosen(listed, **fields).name == name


def test_what_is_missing_is_said() -> None:
    assert "--host-uds=open" in chosen(DEAF).why
    assert "--host-uds=open" in chosen(DEAF, runtime="runsc").why
    assert "lists no gVisor" in chosen(RUNC).why
    assert 'runtime: "runc"' in chosen(GVISOR).why
    assert chosen(GVISOR, runtime="runsc").why == "configured"


@pytest.mark.parametrize(
    ("listed", "sandbox", "expected"),
    [
        pytest.param(FULL, {}, True, id="gVisor with it"),
        pytest.param(GVISOR, {}, False, id="gVisor without"),
        pytest.param(GVISOR, {"runtime": "runsc"}, False, id="asked for, without"),
        pytest.param({"runsc": "?"}, {}, False, id="described in another form"),
        pytest.param(GVISOR, {"runtime": "runc"}, True, id="declined"),
        pytest.param(RUNC, {}, True, id="no gVisor"),
    ],
)
def test_beiges_seccomp_profile_holds_in_gvisor_only_with_its_flag(
    listed: dict[str, Any], sandbox: dict[str, Any], expected: bool
) -> None:
    assert chosen(listed, **sandbox).filtered is expected
