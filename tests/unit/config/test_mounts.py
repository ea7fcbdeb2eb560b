"""Which parts of the host a container may be shown: by name, by what they lead to, by inode."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from beige.config import Mount, examine_mounts
from beige.paths import Home

OK = "/mnt/data"


def raw(*mounts: dict[str, Any], agent: str = "travel", **more: Any) -> dict[str, Any]:
    return {"agents": {agent: {"sandbox": {"extraMounts": list(mounts)}}}, **more}


def mount(source: Path | str, target: str = OK, read_only: Any = True) -> dict[str, Any]:
    return {"source": str(source), "target": target, "readOnly": read_only}


def refused(home: Home, *mounts: dict[str, Any], environ: dict[str, str] | None = None, **more: Any) -> str:
    made, problems = examine_mounts(raw(*mounts, **more), home, environ or {})
    assert bool(problems) == (len(made.get("travel", ())) < len(mounts))
    assert all(problem.allowed for problem in problems), "each says what to do"
    return "\n".join(map(str, problems))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    (path / "file").write_text("x")
    return path


@pytest.mark.parametrize("read_only", [True, False])
def test_an_ordinary_directory_and_file_may_be_mounted(home: Home, data: Path, read_only: bool) -> None:
    entries = [mount(data, "/mnt/a", read_only), mount(data / "file", "/srv/b/file", True)]
    wanted = (Mount(str(data), "/mnt/a", read_only), Mount(str(data / "file"), "/srv/b/file", True))
    if read_only:
        assert examine_mounts(raw(*entries), home, {}) == ({"travel": wanted}, [])
    else:
        assert examine_mounts(raw(entries[0]), home, {}) == ({"travel": wanted[:1]}, [])


def test_read_only_is_the_default(home: Home, data: Path) -> None:
    made, _ = examine_mounts(raw({"source": str(data), "target": OK}), home, {})
    assert made["travel"][0].read_only


GUARDED = ["/", "/etc", "/etc/ssl", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/root", "/run",
           "/var/run", "/boot", "/var", "/var/log", "/tmp", "/var/tmp", "/home", "/etc/../etc", "//etc",
           "/usr/../etc", "/etc/passwd"]  # fmt: skip


@pytest.mark.parametrize("source", GUARDED)
def test_what_is_the_hosts_is_refused_even_to_read(home: Home, source: str) -> None:
    assert "agents.travel.sandbox.extraMounts[0].source" in refused(home, mount(source))


@pytest.mark.parametrize("source", ["/usr", "/usr/bin", "/usr/local", "/bin", "/lib", "/opt"])
def test_what_the_host_runs_is_read_only_at_most(home: Home, source: str) -> None:
    assert "what the host runs" in refused(home, mount(source, read_only=False))


def test_programs_may_be_read_control(home: Home) -> None:
    assert refused(home, mount("/usr/share")) == ""


def test_beiges_home_and_all_around_it_are_refused(home: Home, data: Path) -> None:
    for path in (home.root, home.root / "agents", home.workspace("other"), home.keys, home.root.parent):
        path.mkdir(parents=True, exist_ok=True)
        assert "beige's own files" in refused(home, mount(path)), path


def test_our_own_code_and_plugins_are_read_only_at_most(home: Home, data: Path) -> None:
    plugins = {"p": {"path": str(data)}, "q": {"path": "bundled:kv"}}
    assert "a plugin's code" in refused(home, mount(data, read_only=False), plugins=plugins)
    assert "a plugin's code" in refused(home, mount(data.parent, read_only=False), plugins=plugins)
    assert refused(home, mount(data), plugins=plugins) == ""
    package = Path(__file__).resolve().parents[3] / "services"
    assert "beige's own code" in refused(home, mount(package, read_only=False))


def test_links_are_judged_by_what_they_lead_to(home: Home, tmp_path: Path) -> None:
    link, chain, inside = tmp_path / "link", tmp_path / "chain", tmp_path / "dir"
    inside.mkdir()
    link.symlink_to("/etc")
    chain.symlink_to(link)
    (inside / "up").symlink_to("../link")
    for source in (link, chain, inside / "up", link / "ssl", inside / "up" / "ssl"):
        assert "/etc" in refused(home, mount(source)), source


def test_a_link_to_a_harmless_place_is_resolved_once_for_all(home: Home, data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data)
    made, problems = examine_mounts(raw(mount(tmp_path / "link")), home, {})
    assert (made["travel"][0].source, problems) == (str(data), [])


def test_the_engines_socket_wherever_it_is(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "engine" / "docker.sock"
    path.parent.mkdir()
    path.write_text("")
    environ = {"DOCKER_HOST": f"unix://{path}"}
    for source in (path, path.parent):
        assert "the Docker socket" in refused(home, mount(source), environ=environ)


def test_sockets_pipes_and_what_holds_a_socket(home: Home, data: Path) -> None:
    os.mkfifo(data / "pipe")
    assert "neither a directory nor a file" in refused(home, mount(data / "pipe"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(data / "agent.sock"))
        assert "neither a directory nor a file" in refused(home, mount(data / "agent.sock"))
        assert "the socket 'agent.sock'" in refused(home, mount(data))


@pytest.mark.parametrize("name", [".ssh", ".aws", ".gnupg", ".docker", ".kube", "id_ed25519", ".netrc"])
def test_keys_by_their_names(home: Home, data: Path, name: str) -> None:
    (data / name).mkdir()
    (data / name / "below").mkdir()
    for source in (data / name, data / name / "below", data):
        assert "keys" in refused(home, mount(source)), source


@pytest.mark.parametrize("name", ["server.pem", "tls.key", "prod.env", ".env"])
def test_key_files_are_refused_as_such(home: Home, data: Path, name: str) -> None:
    (data / name).write_text("x")
    assert "holds keys" in refused(home, mount(data / name))


@pytest.mark.parametrize("source", ["data", "./data", "~/data", "/no/such/place", "/mnt\0"])
def test_what_is_no_path_or_not_there(home: Home, source: str) -> None:
    assert refused(home, mount(source))


TARGETS = ["/", "/workspace", "/workspace/data", "/tools", "/tools/bin", "/run", "/run/beige", "/beige/init",
           "/usr", "/usr/local/bin", "/bin", "/etc", "/proc/1", "/dev/shm", "/tmp", "/home/agent", "/root",
           "data",
           "/mnt/../workspace", "//workspace", "/mnt/", "/mnt//a", "/mnt/./a", "", "/mnt\0"]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_hides_something_is_refused(home: Home, data: Path, target: str) -> None:
    assert "extraMounts[0].target" in refused(home, mount(data, target))


@pytest.mark.parametrize("targets", [("/mnt/a", "/mnt/a"), ("/mnt", "/mnt/a"), ("/mnt/a/b", "/mnt/a")])
def test_targets_do_not_overlap(home: Home, data: Path, targets: tuple[str, str]) -> None:
    assert "another mount's target" in refused(home, *(mount(data, target) for target in targets))


def test_a_source_that_an_agent_could_replace_is_refused(home: Home, data: Path) -> None:
    (data / "below").mkdir()
    both = raw(mount(data, read_only=False), agent="other")
    both["agents"] |= raw(mount(data / "below"))["agents"]
    _, (problem,) = examine_mounts(both, home, {})
    assert "agent 'other' may change" in str(problem)
    both["agents"]["other"]["sandbox"]["extraMounts"][0]["readOnly"] = True
    assert examine_mounts(both, home, {})[1] == []


@pytest.mark.parametrize("value", [None, 5, "x", {"a": 1}, [None], [{"source": 5}], [{"target": "/mnt/a"}]])
def test_wrong_shapes_are_left_to_validation(home: Home, value: Any) -> None:
    assert examine_mounts({"agents": {"travel": {"sandbox": {"extraMounts": value}}}}, home, {}) == ({}, [])
