"""The wall around an agent, flag by flag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from beige.config import SandboxConfig
from beige.errors import ConfigError
from beige.paths import Home
from services.sandbox.spec import (
    ContainerSpec,
    base_environment,
    container_name,
    container_spec,
    home_digest,
    ownership_spec,
    size_bytes,
)

HOME = Home(Path("/srv/beige"))
SECCOMP = '{"defaultAction": "SCMP_ACT_ERRNO"}'


def config(**fields: Any) -> SandboxConfig:
    return SandboxConfig.model_validate({"image": "beige-sandbox:latest", **fields})


def spec(home: Home = HOME, agent: str = "travel", **fields: Any) -> ContainerSpec:
    return container_spec(agent, config(**fields), home, SECCOMP)


HOST: dict[str, Any] = spec().body["HostConfig"]

FLAGS = [
    ("NetworkMode", "none"),
    ("ReadonlyRootfs", True),
    ("CapDrop", ["ALL"]),
    ("CapAdd", []),
    ("Privileged", False),
    ("SecurityOpt", ["no-new-privileges:true", f"seccomp={SECCOMP}"]),
    ("IpcMode", "private"),
    ("PidMode", ""),
    ("UTSMode", ""),
    ("UsernsMode", ""),
    ("Devices", []),
    ("GroupAdd", []),
    ("Binds", []),
    ("VolumesFrom", None),
    ("PortBindings", {}),
    ("PublishAllPorts", False),
    ("Memory", 512 * 1024**2),
    ("MemorySwap", 512 * 1024**2),
    ("OomKillDisable", False),
    ("OomScoreAdj", 500),
    ("NanoCpus", 10**9),
    ("PidsLimit", 128),
    ("ShmSize", 16 * 1024**2),
    ("LogConfig", {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}),
    ("RestartPolicy", {"Name": "no"}),
    ("AutoRemove", False),
    ("Init", False),
]


@pytest.mark.parametrize(("flag", "value"), FLAGS, ids=[flag for flag, _ in FLAGS])
def test_the_sealed_profile_sets(flag: str, value: object) -> None:
    assert HOST[flag] == value


def test_nothing_of_the_engines_request_is_set_without_a_test() -> None:
    """A new host flag must come with its reason and its test."""
    assert set(HOST) == {flag for flag, _ in FLAGS} | {"Mounts", "Tmpfs", "Ulimits", "Links"}


def test_the_agent_is_nobody() -> None:
    assert spec().body["User"] == "64000:64000"


def test_the_environment_holds_these_names_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    names = {entry.split("=", 1)[0] for entry in spec().body["Env"]}
    assert names == {"PATH", "HOME", "LANG", "DENO_DIR", "DENO_NO_UPDATE_CHECK", "BEIGE_AGENT"}
    assert "sk-secret" not in json.dumps(spec().body)
    assert base_environment("travel", config())["PATH"].startswith("/tools/bin:")


def test_only_the_workspace_is_writable_and_only_the_agents_own_directories_are_mounted() -> None:
    mounts = {m["Target"]: (m["Source"], m["ReadOnly"]) for m in HOST["Mounts"]}
    assert mounts == {
        "/workspace": ("/srv/beige/agents/travel/workspace", False),
        "/tools/bin": ("/srv/beige/agents/travel/launchers", True),
        "/tools/packages": ("/srv/beige/agents/travel/packages", True),
        "/run/beige": ("/srv/beige/run/agents/travel", True),
    }
    assert all(m["Type"] == "bind" for m in HOST["Mounts"])


@pytest.mark.parametrize("root", ["/a b", "/a:b:rw", "/100%", "/a,b", "/ü\u202e", "/'q\""])
def test_odd_home_paths_reach_the_engine_as_they_are(root: str) -> None:
    sources = [m["Source"] for m in spec(Home(Path(root))).body["HostConfig"]["Mounts"]]
    assert f"{root}/agents/travel/workspace" in sources
    assert spec(Home(Path(root))).body["HostConfig"]["Binds"] == []


def test_tmp_is_noexec_and_all_files_in_memory_are_bounded() -> None:
    tmp, home = HOST["Tmpfs"]["/tmp"].split(","), HOST["Tmpfs"]["/home/agent"].split(",")
    assert {"nosuid", "nodev", "noexec", f"size={64 << 20}", "nr_inodes=16k"} <= set(tmp)
    assert {"nosuid", "nodev", f"size={128 << 20}", "nr_inodes=32k", "uid=64000"} <= set(home)
    assert set(HOST["Tmpfs"]) == {"/tmp", "/home/agent"}


def test_ulimits() -> None:
    limits = {u["Name"]: (u["Soft"], u["Hard"]) for u in HOST["Ulimits"]}
    assert limits["core"] == (0, 0)
    assert limits["nofile"] == (1024, 4096)
    assert limits["fsize"] == (2 * 1024**3, 2 * 1024**3)


def test_the_process_limit_per_uid_leaves_room_for_every_agent() -> None:
    """The kernel sums it over all containers, which share uid 64000."""
    nproc = next(u for u in HOST["Ulimits"] if u["Name"] == "nproc")
    assert nproc["Soft"] >= 100 * HOST["PidsLimit"]


def test_the_executor_is_the_first_process_and_replaces_the_images_command() -> None:
    assert (spec().body["Entrypoint"], spec().body["Cmd"]) == (["/beige/init"], [])


def test_the_fallback_has_the_same_walls() -> None:
    fallback = container_spec("travel", config(), HOME, SECCOMP, executor=False).body
    assert fallback["Entrypoint"] == ["sleep", "infinity"]
    assert {**fallback["HostConfig"], "Init": False} == HOST
    assert fallback["User"] == "64000:64000"


def test_limits_follow_the_config() -> None:
    fields = {
        "memory": "1g",
        "cpus": 0.5,
        "pids": 64,
        "tmpSize": "10m",
        "homeSize": "20m",
        "runtime": "runsc",
    }
    host = spec(**fields).body["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (
        2**30,
        2**30,
        5 * 10**8,
        64 + 256,  # gVisor's own threads
    )
    assert f"size={10 << 20}" in host["Tmpfs"]["/tmp"]
    assert host["Runtime"] == "runsc"
    assert "Runtime" not in HOST


# --- the profile open ---------------------------------------------------------------------------------


def difference(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def test_open_differs_in_its_root_and_what_is_in_memory_alone() -> None:
    made = spec(profile="open").body
    assert difference(made["HostConfig"], HOST) == {"ReadonlyRootfs", "Tmpfs"}
    assert made["HostConfig"]["ReadonlyRootfs"] is False
    assert set(made["HostConfig"]["Tmpfs"]) == {"/tmp"}
    assert made["HostConfig"]["Tmpfs"]["/tmp"].startswith("rw,nosuid,nodev,exec,size=")
    assert difference(made, spec().body) == {"Env", "HostConfig", "Labels"}
    assert made["User"] == "64000:64000"


def test_root_inside_gets_six_capabilities_and_no_more() -> None:
    made = spec(profile="open", root=True).body
    assert difference(made["HostConfig"], spec(profile="open").body["HostConfig"]) == {"CapAdd"}
    assert made["HostConfig"]["CapAdd"] == [
        f"CAP_{name}" for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID")
    ]
    assert made["User"] == "0:0"
    assert made["HostConfig"]["NetworkMode"] == "none"


def test_the_bridge_changes_the_network_alone() -> None:
    made, walled = spec(profile="open", network="bridge").body, spec(profile="open").body
    assert difference(made["HostConfig"], walled["HostConfig"]) == {"NetworkMode"}
    assert difference(made, walled) == {"HostConfig", "Labels", "NetworkDisabled"}
    assert (made["HostConfig"]["NetworkMode"], made["NetworkDisabled"]) == ("bridge", False)


def test_the_bridge_is_refused_in_sealed() -> None:
    with pytest.raises(ConfigError, match=r"agents\.travel\.sandbox\.network: is only for the profile open"):
        spec(network="bridge")


def test_root_is_refused_in_sealed() -> None:
    with pytest.raises(ConfigError, match=r"agents\.travel\.sandbox\.root: is only for the profile open"):
        spec(root=True)


@pytest.mark.parametrize("profile", ["sealed", "open"])
def test_egress_changes_the_environment_and_no_wall(profile: str) -> None:
    without, made = spec(profile=profile).body, spec(profile=profile, egress={"allow": ("*",)}).body
    assert difference(made, without) == {"Env", "Labels"}
    more = {entry.partition("=")[0] for entry in set(made["Env"]) - set(without["Env"])}
    assert more == {
        *("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy"),
        "NODE_USE_ENV_PROXY",
    }


def test_the_containers_definition_holds_no_token_a_commands_proxy_does() -> None:
    sandbox = config(egress={"allow": ()})
    assert base_environment("travel", sandbox)["HTTPS_PROXY"] == "http://127.0.0.1:3128"
    assert base_environment("travel", sandbox, "tok-1")["HTTPS_PROXY"] == "http://call:tok-1@127.0.0.1:3128"


def test_files_in_memory_may_not_fill_it() -> None:
    with pytest.raises(ConfigError, match=r"agents\.travel\.sandbox\.memory"):
        spec(memory="256m")


def test_labels_name_home_agent_and_spec() -> None:
    made = spec()
    assert made.body["Labels"] == {
        "beige.home": home_digest(HOME),
        "beige.agent": "travel",
        "beige.spec": made.digest,
    }
    assert made.name == f"beige-{home_digest(HOME)[:8]}-travel" == container_name(HOME, "travel")


def test_two_homes_never_share_a_container_name() -> None:
    assert container_name(HOME, "travel") != container_name(Home(Path("/srv/beige2")), "travel")


@pytest.mark.parametrize(
    "change", [{"pids": 64}, {"image": "other:1"}, {"memory": "1g"}, {"runtime": "runsc"}, {"cpus": 2.0}]
)
def test_any_change_changes_the_digest(change: dict[str, Any]) -> None:
    assert spec(**change).digest != spec().digest
    assert container_spec("travel", config(), HOME, "{}").digest != spec().digest


def test_the_digest_is_stable() -> None:
    assert spec().digest == spec().digest


def test_the_ownership_helper_can_change_owners_and_nothing_else() -> None:
    body = ownership_spec(HOME, "travel", "beige-sandbox:latest", SECCOMP)
    host = body["HostConfig"]
    assert (host["CapDrop"], host["CapAdd"], host["NetworkMode"]) == (["ALL"], ["CHOWN"], "none")
    assert [m["Target"] for m in host["Mounts"]] == ["/workspace"]
    assert host["ReadonlyRootfs"]
    assert body["Entrypoint"] == ["chown", "-hR", "64000:64000", "/workspace"]


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("512b", 512), ("2k", 2048), ("64m", 64 << 20), ("1g", 1 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size
