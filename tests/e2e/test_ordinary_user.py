"""Everything runs as an ordinary user who may use Docker, and in homes with awkward paths."""

import grp
import os
import subprocess
import sys
from pathlib import Path

import pytest

from beige.paths import Home
from beige.supervisor import leftovers

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_ready")]
ROOT = Path(__file__).parents[2]
UID = 64123
COMMAND = [sys.executable, "-P", "-m", "beige.cli", "demo"]
BECOME = """
set -e
# Python, the environment and the checkout may stand where only root may look (/root): show them, and
# nothing else of that place, to the ordinary user. Only this mount namespace sees it.
hold=$1; user=$2; group=$3; shift 3
n=0
for dir in $DIRS; do n=$((n + 1)); mkdir -p "$hold/$n"; mount --bind "$dir" "$hold/$n"; done
for wall in $WALLS; do mount -t tmpfs -o mode=755 wall "$wall"; done
n=0
for dir in $DIRS; do n=$((n + 1)); mkdir -p "$dir"; mount --bind "$hold/$n" "$dir"; done
exec setpriv --reuid "$user" --regid "$user" --groups "$group" --no-new-privs "$@"
"""


def environ(home):
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home.root),
        "BEIGE_HOME": str(home.root),
        "PYTHONPATH": str(ROOT),
    }


def walls(paths):
    """Directories above `paths` that others may not enter, outermost of each chain only."""
    found = []
    for path in paths:
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & 0o001:
                found.append(parent)
                break
    return sorted(set(found))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user; everything else ran as one")
def test_an_ordinary_user_who_may_use_docker_runs_the_demo(tmp_path_factory):
    home = Home(Path(subprocess.check_output(["mktemp", "-d", "/tmp/bu-XXXX"], text=True).strip()))
    hold = tmp_path_factory.mktemp("hold")
    os.chown(home.root, UID, UID)
    socket_group = os.stat("/var/run/docker.sock").st_gid
    assert grp.getgrgid(socket_group).gr_name != "root", "the engine's socket has no group of its own"
    dirs = [Path(sys.base_prefix), Path(sys.prefix), ROOT]
    blocked = walls(dirs)
    shown = [d for d in dirs if any(d.is_relative_to(w) for w in blocked)]
    variables = {"DIRS": " ".join(map(str, shown)), "WALLS": " ".join(map(str, blocked))}
    try:
        become = ["unshare", "--mount", "--propagation", "private", "sh", "-c", BECOME, "become"]
        done = subprocess.run(
            [*become, str(hold), str(UID), str(socket_group), *COMMAND],
            env=environ(home) | variables,
            capture_output=True,
            text=True,
            timeout=170,
            cwd="/",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "20 of 20 kv calls" in done.stdout
        assert home.audit_log.stat().st_uid == UID
        workspace = home.workspace("travel")
        assert workspace.stat().st_uid == 64000, "the workspace belongs to the agent"
    finally:
        subprocess.run(["rm", "-rf", "--", str(home.root)], check=True)


@pytest.mark.parametrize("name", ["with space, 100% and ünïcödé:x", "long-" + "x" * 120], ids=["odd", "long"])
def test_the_demo_runs_in_a_home_with_an_awkward_path(tmp_path_factory, name):
    home = Home(tmp_path_factory.mktemp("home") / name)
    done = subprocess.run(COMMAND, env=environ(home), capture_output=True, text=True, timeout=170, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 of 20 kv calls" in done.stdout
    assert leftovers.processes(home) == []


def test_a_home_that_cannot_work_is_refused_with_the_reason(tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("home") / "two\nlines")
    done = subprocess.run(COMMAND, env=environ(home), capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 2
    assert "holds a newline" in done.stderr
