"""Touches the host's disk: a file system of its own for each workspace that has a size, mounted in its place.

An ext4 image per agent in `data/workspaces/`, which is private and mounted nowhere: the agent changes files
in it, never the image. Bytes and inodes are bounded by the kernel. Needs root; without it the container is
not made, since nobody may believe in a limit that isn't there. What is below the mount belongs to root, mode
0700: an agent whose mount is missing can't write, instead of writing without limit.
Tests: `tests/docker/test_sandbox_quota.py`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from beige.errors import Failed
from beige.paths import Home, private_directory
from services.sandbox.failure import last_line

TOOLS = ("mkfs.ext4", "e2fsck", "resize2fs", "mount", "umount", "losetup")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
BLOCK = 4096
BYTES_PER_INODE = 8192
TOOL_S = 120.0
COPY_S = 1800.0
REPAIRED = 1
"""e2fsck: errors were there and are mended."""
ROOM_BYTES = 64 * 1024
"""Less than so much left counts as full: a file's metadata need some, too."""
ABSENT, OURS, OTHER = "absent", "ours", "other"


@dataclass(frozen=True)
class Usage:
    """What a workspace with a size holds."""

    limit_bytes: int
    used_bytes: int
    limit_files: int
    used_files: int

    @property
    def full(self) -> bool:
        return self.limit_bytes - self.used_bytes < ROOM_BYTES or self.used_files >= self.limit_files


def mounted_from(mountinfo: str, target: str) -> str | None:
    """The source of what is mounted at `target`, from the text of /proc/self/mountinfo; None if nothing is.
    The last line that names it counts: it lies on top."""
    found = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, behind = left.split(" "), right.split(" ")
        if len(fields) > 4 and len(behind) > 1 and _unescaped(fields[4]) == target:
            found = _unescaped(behind[1])
    return found


def _unescaped(field: str) -> str:
    raw = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), os.fsencode(field))
    return os.fsdecode(raw)


class Disk:
    """One agent's workspace as a file system of its own. All methods block: call them in a thread, one at a
    time. The agent's container must not run while `attach` has something to do."""

    def __init__(self, home: Home, agent: str, size: int | None, log: logging.Logger) -> None:
        self._agent, self._size, self._log = agent, size, log
        self._target = home.workspace(agent)
        self._directory = home.data / "workspaces"
        self._image = self._directory / f"{agent}.ext4"

    @property
    def limited(self) -> bool:
        """An image that is there is used, whatever the configuration says now: the files are in it."""
        return self._size is not None or self._image.exists()

    def attached(self) -> bool:
        return self._state() is OURS

    def attach(self) -> None:
        """The workspace is mounted afterwards, with the configured size. Failed says why it can't be."""
        state = self._state()
        if state is OURS:
            self._note_other_size()
            return
        self._check_possible(state)
        private_directory(self._directory)
        private_directory(self._target.parent)
        if self._image.exists():
            self._check_image()
            self._repair()
            self._resize()
        else:
            self._make()
        self._clear_target()
        self._mount(self._image, self._target)
        _drop_lost_and_found(self._target)
        self._log.info("mounted the workspace of %s (%d bytes)", self._agent, self._image.stat().st_size)

    def detach(self) -> None:
        """Unmount it; its loop device goes with it. What is in use stays, and is found again."""
        if self._state() is not OURS:
            return
        try:
            self._run("umount", str(self._target))
        except Failed as error:
            self._log.error("the workspace of %s stays mounted: %s", self._agent, error)

    def usage(self) -> Usage | None:
        """None where there is no limit. Asks the file system as a whole: no path in it is followed."""
        if not self.attached():
            return None
        seen = os.statvfs(self._target)
        unit = seen.f_frsize
        return Usage(
            seen.f_blocks * unit,
            (seen.f_blocks - seen.f_bavail) * unit,
            seen.f_files,
            seen.f_files - seen.f_favail,
        )

    # --- looking -----------------------------------------------------------------------------------------

    def _state(self) -> str:
        source = mounted_from(Path("/proc/self/mountinfo").read_text(), os.path.realpath(self._target))
        if source is None:
            return ABSENT
        with suppress(OSError):
            backing = Path("/sys/block", Path(source).name, "loop/backing_file").read_text().rstrip("\n")
            if backing == os.path.realpath(self._image):
                return OURS
        return OTHER

    def _check_possible(self, state: str) -> None:
        if state is OTHER:
            raise self._failed("something else is mounted there", "unmount it, or remove workspaceSize")
        if os.geteuid() != 0:
            raise self._failed("a quota needs root", "run beige as root, or remove workspaceSize")
        missing = [name for name in TOOLS if not shutil.which(name, path=PATH)]
        if missing:
            raise self._failed(f"{', '.join(missing)} not found", "install e2fsprogs and util-linux")

    def _check_image(self) -> None:
        """Mounting an image that somebody else wrote would hand the kernel a file system of their making."""
        info = self._image.lstat()
        private = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_nlink == 1
        if not private or info.st_mode & 0o077:
            raise self._failed(f"{self._image.name} is not this user's alone", "look who changed it")

    def _note_other_size(self) -> None:
        size = self._file_system_bytes()
        if self._size is not None and size != _whole_blocks(self._size):
            self._log.warning(
                "the workspace of %s keeps its %d bytes until `beige sandbox rebuild %s`",
                self._agent, size, self._agent,
            )  # fmt: skip

    # --- changing ----------------------------------------------------------------------------------------

    def _make(self) -> None:
        """A new image, with what the workspace holds so far. It gets its name when it is complete."""
        assert self._size is not None
        new = self._image.with_suffix(".new")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.ftruncate(descriptor, _whole_blocks(self._size))
        finally:
            os.close(descriptor)
        # No journal: it would take 4 MiB and more; e2fsck mends what a power cut leaves.
        self._run(
            "mkfs.ext4", "-q", "-F", "-m0", f"-b{BLOCK}", f"-i{BYTES_PER_INODE}", "-O^has_journal",
            "-Eroot_owner=64000:64000", str(new),
        )  # fmt: skip
        try:
            self._fill(new)
        except Failed:
            new.unlink()
            raise
        os.rename(new, self._image)

    def _fill(self, new: Path) -> None:
        place = self._image.with_suffix(".mnt")
        place.mkdir(mode=0o700, exist_ok=True)
        self._mount(new, place)
        try:
            if self._target.is_dir() and any(self._target.iterdir()):
                # Nothing of the agent runs now. Links are copied as links.
                self._run("cp", "-a", "--", f"{self._target}/.", f"{place}/", timeout_s=COPY_S)
        finally:
            self._run("umount", str(place))
            place.rmdir()

    def _repair(self, *, thoroughly: bool = False) -> None:
        if self._devices():
            return  # still mounted somewhere: in use, so nothing to repair
        done = self._tool("e2fsck", "-p", *(["-f"] if thoroughly else []), str(self._image))
        if done.returncode & ~REPAIRED:
            raise self._failed(f"e2fsck: {_said(done)}", f"run e2fsck on {self._image.name} by hand")

    def _resize(self) -> None:
        wanted, size = _whole_blocks(self._size or 0), self._file_system_bytes()
        if self._size is None:
            self._log.warning(
                "%s has no workspaceSize any more; its workspace stays limited to %d bytes", self._agent, size
            )
        elif wanted != size and not self._devices():
            self._repair(thoroughly=True)
            # It lengthens the file by itself, and gives up before it changes anything.
            done = self._tool("resize2fs", str(self._image), f"{wanted // 1024}K")
            if done.returncode:
                why = f"its files do not fit into {wanted} bytes"
                raise self._failed(why, "raise workspaceSize again and remove files")
            os.truncate(self._image, wanted)

    def _file_system_bytes(self) -> int:
        """As the superblock says: growing may have been cut short after the file grew."""
        with self._image.open("rb") as image:
            image.seek(1024 + 4)
            return int.from_bytes(image.read(4), "little") * BLOCK

    def _clear_target(self) -> None:
        """An empty directory to mount on. Files that lie there are kept, beside it."""
        with suppress(FileNotFoundError):
            if any(self._target.iterdir()):
                kept = self._beside()
                os.rename(self._target, kept)
                self._log.warning("what was in the workspace of %s is kept in %s", self._agent, kept.name)
        self._target.mkdir(exist_ok=True)
        os.chown(self._target, 0, 0)
        self._target.chmod(0o700)

    def _beside(self) -> Path:
        number = 1
        while (kept := self._target.with_name(f"workspace.before-quota-{number}")).exists():
            number += 1
        return kept

    def _mount(self, image: Path, target: Path) -> None:
        """Two loop devices over one file would destroy it: one that is there is used again."""
        devices = self._devices() if image == self._image else []
        source, options = (devices[0], "") if devices else (str(image), "loop,")
        self._run("mount", "-t", "ext4", "-o", f"{options}nosuid,nodev", source, str(target))

    def _devices(self) -> list[str]:
        """Loop devices that hold the image: a container that still runs keeps one."""
        done = self._run("losetup", "--noheadings", "--output=NAME", f"--associated={self._image}")
        return done.stdout.split()

    def _run(self, *command: str, timeout_s: float = TOOL_S) -> subprocess.CompletedProcess[str]:
        done = self._tool(*command, timeout_s=timeout_s)
        if done.returncode:
            raise self._failed(f"{command[0]}: {_said(done)}", "see the log of the sandbox service")
        return done

    def _tool(self, *command: str, timeout_s: float = TOOL_S) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command, env={"PATH": PATH, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, errors="replace", timeout=timeout_s, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._failed(f"{command[0]}: {type(error).__name__}", "see the sandbox's log") from error

    def _failed(self, why: str, remedy: str) -> Failed:
        text = f"the workspace of agent {self._agent!r} can't have its workspaceSize: {why}; {remedy}"
        return Failed(text, executed="no")


def unused(home: Home, agents: frozenset[str], log: logging.Logger) -> list[Disk]:
    """Workspaces with an image whose agents are configured no longer: they may be mounted still."""
    names = {path.stem for path in (home.data / "workspaces").glob("*.ext4")}
    return [Disk(home, name, None, log) for name in sorted(names - agents)]


def _drop_lost_and_found(top: Path) -> None:
    """mkfs and e2fsck make it, for root. What it holds after a repair stays; so does the agent's own."""
    found = top / "lost+found"
    with suppress(OSError):
        if found.lstat().st_uid == 0:
            found.rmdir()


def _whole_blocks(size: int) -> int:
    return size // BLOCK * BLOCK


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return last_line(done.stderr or done.stdout)
