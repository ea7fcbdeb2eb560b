"""A container's flags, as specified and as the engine has them."""

from __future__ import annotations

from typing import Any

import pytest

from services.sandbox.view import flags

BODY: dict[str, Any] = {
    "Image": "i",
    "User": "64000:64000",
    "Cmd": [],
    "Tty": False,
    "Env": ["PATH=/bin", "A=b=c"],
    "Labels": {"beige.agent": "a"},
    "HostConfig": {
        "NetworkMode": "none",
        "CapAdd": [],
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges:true", 'seccomp={"x": 1}'],
        "Mounts": [{"Source": "/s", "Target": "/w", "ReadOnly": False}],
        "Tmpfs": {"/tmp": "rw"},
        "Init": False,
    },
}
ENGINE: dict[str, Any] = {
    "Config": {
        "Image": "i",
        "User": "64000:64000",
        "Cmd": None,
        "Tty": False,
        "Env": ["A=b=c", "PATH=/bin"],
        "Labels": {"beige.agent": "a"},
        "Domainname": "",
    },
    "HostConfig": {
        "NetworkMode": "none",
        "CapAdd": None,
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges:true", 'seccomp={"x": 1}'],
        "Mounts": [{"Source": "/s", "Target": "/w"}],
        "Tmpfs": {"/tmp": "rw"},
        "Init": None,
        "MaskedPaths": ["/proc/kcore"],
        "CpuShares": 0,
    },
}


def differing(engine: dict[str, Any]) -> list[str]:
    return [flag.name for flag in flags(BODY, engine) if flag.differs]


def changed(part: str, **values: Any) -> dict[str, Any]:
    return {**ENGINE, part: {**ENGINE[part], **values}}


def test_what_the_engine_leaves_out_or_words_otherwise_is_the_same() -> None:
    assert differing(ENGINE) == []


def test_each_flag_of_the_request_is_shown_and_the_engines_own_too() -> None:
    shown = {flag.name: flag for flag in flags(BODY, ENGINE)}
    assert {"User", "Env.PATH", "HostConfig.NetworkMode", "HostConfig.Tmpfs./tmp"} <= set(shown)
    assert (shown["Env.A"].wanted, shown["Env.A"].engine) == ("b=c", "b=c")
    assert shown["HostConfig.MaskedPaths"].wanted is None
    assert "HostConfig.CpuShares" not in shown


def test_a_seccomp_profile_is_shown_by_its_digest() -> None:
    (options,) = (flag.wanted for flag in flags(BODY, None) if flag.name == "HostConfig.SecurityOpt")
    assert options[1].startswith("seccomp=sha256:") and len(options[1]) < 90


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        pytest.param(changed("HostConfig", NetworkMode="bridge"), "HostConfig.NetworkMode", id="value"),
        pytest.param(changed("HostConfig", CapAdd=["NET_RAW"]), "HostConfig.CapAdd", id="for nothing"),
        pytest.param(changed("HostConfig", Privileged=True), "HostConfig.Privileged", id="true for false"),
        pytest.param(changed("HostConfig", SecurityOpt=["no-new-privileges:true", 'seccomp={"x": 2}']),
                     "HostConfig.SecurityOpt", id="another profile"),
        pytest.param(changed("HostConfig", Mounts=[{"Source": "/s", "Target": "/w"}, {"Source": "/"}]),
                     "HostConfig.Mounts", id="one more mount"),
        pytest.param(changed("HostConfig", Binds=["/:/host"]), "HostConfig.Binds", id="unasked"),
        pytest.param(changed("Config", Env=["PATH=/bin", "A=b=c", "KEY=x"]), "Env.KEY", id="variable"),
        pytest.param(changed("Config", Labels={}), "Labels.beige.agent", id="missing"),
    ],
)  # fmt: skip
def test_a_difference_is_marked(engine: dict[str, Any], name: str) -> None:
    assert differing(engine) == [name]


def test_without_a_container_the_specification_is_shown_alone() -> None:
    rows = flags(BODY, None)
    assert [row.engine for row in rows] == [None] * len(rows)
    assert not any(row.differs for row in rows)
