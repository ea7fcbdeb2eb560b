"""The wheel, installed in an empty environment away from the checkout, is complete."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECK = """
import beige.paths
from beige.paths import bundled_plugins_dir, image_dir
assert "site-packages" in beige.paths.__file__, beige.paths.__file__
for name in ("Dockerfile", "seccomp.json", "tool-client.c"):
    assert (image_dir() / name).is_file(), name
assert (bundled_plugins_dir() / "kv" / "plugin.json").is_file()
assert (bundled_plugins_dir() / "telegram" / "bot_api.py").is_file()
import broker.router, socket_bridge.service, services.llm.service, services.policy.service
import services.audit.service, services.sandbox.service, services.tools.service, services.tap.service
import services.channels.service
print("complete")
"""


def run(*command, **environ):
    done = subprocess.run(
        list(command),
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **environ},
        capture_output=True,
        text=True,
        timeout=150,
        cwd="/",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A virtual environment with the wheel; its dependencies are the ones installed here."""
    work = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(ROOT))
    (wheel,) = work.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(work / "venv"))
    python = str(work / "venv" / "bin" / "python")
    run(*pip, "--python", python, "install", "--no-deps", str(wheel))
    here = next(p for p in sys.path if p.endswith("site-packages"))
    site = next((work / "venv" / "lib").glob("python*/site-packages"))
    # Behind the environment's own packages, and without this one's editable install of beige.
    (site / "dependencies.pth").write_text(f"{here}\n")
    return work / "venv" / "bin"


def test_everything_a_process_needs_is_in_the_wheel(installed):
    assert run(str(installed / "python"), "-P", "-c", CHECK).strip() == "complete"


def test_the_command_line_works_from_the_wheel(installed, tmp_path):
    beige = str(installed / "beige")
    assert "audit" in run(beige, "--help")
    home = {"BEIGE_HOME": str(tmp_path / "home"), "ANTHROPIC_API_KEY": "k"}
    run(beige, "setup", **home)
    run(beige, "config", "check", **home)
    assert '"agents"' in run(beige, "config", "schema", **home)
