"""Room for as many connections as are allowed, as far as the hard limit goes."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import logging, resource, sys
from beige.process import allow_open_files
hard = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
allow_open_files(int(sys.argv[1]), logging.getLogger())
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("wanted", "hard", "said"),
    [
        (0, 1000, "128\n"),
        (372, 1000, "500\n"),
        (5000, 1000, "1000 open files are allowed, 5128 could be needed: raise `ulimit -n`\n1000\n"),
    ],
)
def test_the_soft_limit_is_raised_to_what_is_needed(wanted: int, hard: int, said: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(wanted), str(hard)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == said
