"""Threat: a mount that the operator configured hands the agent the host, or the agent turns it into one.

What may be configured is `tests/unit/config/test_mounts.py`'s; here containers are made. The control is the
engine itself, which mounts whatever it is told.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from beige.config import load
from beige.errors import BeigeError, ConfigError
from beige.messages.base import AgentRef
from beige.messages.sandbox import ExecRequest
from beige.paths import Home
from beige.testing import House, short_home

pytestmark = pytest.mark.docker
IMAGE = "beige-sandbox:latest"


def write_config(home: Home, mounts: dict[str, list[dict[str, object]]]) -> None:
    agents = {
        name: {
            "model": {"provider": "s", "model": "m"},
            "tools": [],
            "sandbox": {"image": IMAGE, "extraMounts": entries},
        }
        for name, entries in mounts.items()
    }
    providers = {"s": {"api": "scripted", "script": "script.json5"}}
    home.config.write_text(json.dumps({"llm": {"providers": providers}, "agents": agents}))
    (home.root / "script.json5").write_text("[]")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that every user of the host may change."""
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(0o777)
    (path / "file").write_text("of the host\n")
    (path / "file").chmod(0o666)
    return path


@contextlib.contextmanager
def running(mounts):
    with short_home("bgm-") as home:
        write_config(home, mounts)
        with House(home) as house:
            for name in ("broker", "policy", "audit", "sandbox"):
                house.start(name)
            yield house


def sh(house, gateway, command, agent="travel"):
    async def work(bus):
        done = await bus.call("sandbox.exec", ExecRequest(command), agent=agent, ttl_s=60)
        return done.exit_code, done.stdout.decode() + done.stderr.decode()

    return type(gateway)(house.home, house.home.config).operate(work)


def test_a_mount_is_read_only_unless_said_otherwise(gateway, data):
    writable = data.parent / "writable"
    writable.mkdir()
    writable.chmod(0o777)
    mounts = [
        {"source": str(data), "target": "/mnt/data"},
        {"source": str(writable), "target": "/mnt/out", "readOnly": False},
    ]
    with running({"travel": mounts}) as house:
        assert sh(house, gateway, "cat /mnt/data/file") == (0, "of the host\n")
        code, seen = sh(
            house, gateway, "echo changed > /mnt/data/file; rm /mnt/data/file; touch /mnt/data/new"
        )
        assert code != 0
        assert seen.count("Read-only file system") == 3
        assert (data / "file").read_text() == "of the host\n"
        assert sh(house, gateway, "echo kept > /mnt/out/file") == (0, ""), "control"
        assert (writable / "file").read_text() == "kept\n"


def test_a_link_that_changes_after_the_start_is_not_followed(gateway, data):
    """The configuration was sound when it was read; before the container is made the link leads elsewhere."""
    link = data.parent / "link"
    link.symlink_to(data)
    with running({"travel": [{"source": str(link), "target": "/mnt/data"}]}) as house:
        assert sh(house, gateway, "cat /mnt/data/file") == (0, "of the host\n"), "control"
        link.unlink()
        link.symlink_to("/etc")

        async def again(bus):
            # What runs keeps what it was shown; a new container is not made.
            await bus.call("sandbox.remove", AgentRef(), agent="travel", ttl_s=60)
            with pytest.raises(BeigeError, match=r"extraMounts\[0\]\.source: .*/etc"):
                await bus.call("sandbox.ensure", AgentRef(), agent="travel", ttl_s=60)

        type(gateway)(house.home, house.home.config).operate(again)


def test_a_link_planted_in_a_shared_directory_leads_nowhere(gateway, careless, data):
    """An agent's link is followed inside its container, where the host's file is not."""
    mounts = [{"source": str(data), "target": "/mnt/data", "readOnly": False}]
    with running({"travel": mounts, "other": mounts}) as house:
        assert (
            sh(house, gateway, f"ln -s {gateway.canary_file} /mnt/data/trap; ls /mnt/data")[1]
            == "file\ntrap\n"
        )
        for agent in ("travel", "other"):
            assert gateway.host_canary not in sh(house, gateway, "cat /mnt/data/trap", agent)[1]
    assert gateway.host_canary in careless.sh(f"cat {gateway.canary_file}").out, "control"


REFUSED = ["/", "/etc", "/proc", "/var/run/docker.sock", "/run", "/dev", "HOME", "HOME/keys", "HOME/logs"]


@pytest.mark.parametrize("source", REFUSED)
def test_a_house_with_a_mount_that_gives_power_away_does_not_start(source):
    with short_home("bgm-") as home:
        path = source.replace("HOME", str(home.root))
        write_config(home, {"travel": [{"source": path, "target": "/mnt/data"}]})
        with pytest.raises(ConfigError, match=r"agents\.travel\.sandbox\.extraMounts\[0\]\.source"):
            load(home)
        write_config(home, {"travel": [{"source": "/usr/share", "target": "/mnt/data"}]})
        assert load(home).agents["travel"].sandbox.extra_mounts[0].read_only, "control"


def test_the_engine_mounts_what_it_is_told_control(gateway, careless):
    """What keeps the host's directories out is the check, not the engine."""
    assert str(gateway.home.root) in {m["Source"] for m in careless.inspect()["Mounts"]}
