"""What /proc/self/mountinfo says about a workspace, and what one without root is told."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from beige.errors import Failed
from beige.paths import Home
from services.sandbox.quota import Disk, Usage, mounted_from

MOUNTINFO = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 7:0 / /srv/b/agents/a/workspace rw,nosuid,nodev shared:9 - ext4 /dev/loop0 rw
31 22 7:1 / /srv/a\040b/agents/\303\274/workspace rw,nosuid - ext4 /dev/loop1 rw
32 22 0:40 / /srv/b/agents/a/workspace rw - tmpfs tmpfs rw
33 22 0:41 /srv/b/agents/c/workspace /elsewhere rw - ext4 /dev/loop3 rw
"""


@pytest.mark.parametrize(
    ("target", "source"),
    [
        ("/", "/dev/vda"),
        ("/srv/a b/agents/ü/workspace", "/dev/loop1"),
        ("/srv/b/agents/a/workspace", "tmpfs"),
        ("/srv/b/agents/c/workspace", None),
        ("/srv/b", None),
    ],
)
def test_what_is_mounted_on_top(target: str, source: str | None) -> None:
    assert mounted_from(MOUNTINFO, target) == source


@pytest.mark.parametrize("text", ["", "\n", "a b", "1 2 3 4 /x", "1 2 3 4 /x - ext4"])
def test_lines_that_say_nothing(text: str) -> None:
    assert mounted_from(text, "/x") is None


@pytest.mark.parametrize(
    ("used", "files", "full"), [(0, 0, False), (900_000, 9, False), (1_000_000, 0, True), (0, 10, True)]
)
def test_full_is_full_of_bytes_or_of_files(used: int, files: int, full: bool) -> None:
    assert Usage(1_000_000, used, 10, files).full is full


def test_without_a_size_and_an_image_nothing_is_done(home: Home) -> None:
    disk = Disk(home, "travel", None, logging.getLogger())
    assert (disk.limited, disk.usage()) == (False, None)


def test_an_ordinary_user_is_told_and_gets_no_workspace_without_limit(home: Home) -> None:
    """In a process that gave root away: the decision is the kernel's answer about this very process."""
    os.chown(home.root, 64000, 64000) if os.geteuid() == 0 else None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setuid(64000)
            Disk(home, "travel", 1 << 24, logging.getLogger()).attach()
        except Failed as error:
            code = 0 if "needs root" in str(error) and "remove workspaceSize" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not Path(home.workspace("travel")).exists()
