"""scripts/engine.sh where it must not install anything: an engine was named, and does not answer."""

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "engine.sh"


def test_an_engine_the_operator_named_is_not_replaced_but_explained(tmp_path):
    done = subprocess.run(
        [SCRIPT], env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert "what to do:" in done.stderr
    assert "installing" not in done.stderr
