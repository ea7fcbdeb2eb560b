"""read and write inside: the image's program and the scripts for other images do the same.

Each case is tried on both, as the agent would run it: not as root.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess

import pytest

from services.sandbox import scripts
from services.sandbox.scripts import BROKEN, DIRECTORY, FORBIDDEN, MISSING, READ, SHORT, SPECIAL, WRITE

AGENT = 64000
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
TEMPORARY = ".beige-write-0"


@pytest.fixture(params=["static", "sanitized", "script"])
def take(request, tmp_path):
    """Takes a step: (step, path, *arguments, stdin=b"") -> the process that did it. In tmp_path, which is
    the agent's."""
    if os.geteuid() != 0:
        pytest.fail("these tests need root: the cases about permissions run as another user")
    native = request.param != "script"
    programs = request.getfixturevalue(f"{request.param}_programs") if native else None

    def taken(step, path, *arguments, stdin=b"", limit=None):
        argv = scripts.argv(step, os.fsencode(path), *arguments, native=native)
        if native:
            assert argv[0] == scripts.PROGRAM
            argv = (programs / "file", *argv[1:])
        return subprocess.run(
            argv, input=stdin, capture_output=True, env=ENVIRONMENT, cwd="/", timeout=30,
            user=AGENT, group=AGENT, extra_groups=[], preexec_fn=limit,
        )  # fmt: skip

    for directory in (tmp_path, *tmp_path.parents):
        if str(directory).startswith("/tmp/") and directory.stat().st_mode & 0o011 != 0o011:
            directory.chmod(directory.stat().st_mode | 0o011)
    if programs is not None:
        for directory in (programs, *programs.parents):
            if str(directory).startswith("/tmp/"):
                directory.chmod(directory.stat().st_mode | 0o055)
    os.chown(tmp_path, AGENT, AGENT)
    return taken


def write(take, path, content, size=None, **how):
    return take(WRITE, path, TEMPORARY, str(len(content) if size is None else size), stdin=content, **how)


def own(path, content=b"x", mode=0o644):
    path.write_bytes(content)
    os.chown(path, AGENT, AGENT)
    path.chmod(mode)
    return path


# --- read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 5, 1_000_000])
def test_read_gives_the_size_and_the_first_bytes(most, take, tmp_path):
    file = own(tmp_path / "f", b"hello")
    done = take(READ, file, str(most))
    assert (done.returncode, done.stdout) == (0, b"5\n" + b"hello"[:most])


def test_read_gives_every_byte_of_a_large_file(take, tmp_path):
    content = os.urandom(3_000_001)
    done = take(READ, own(tmp_path / "f", content), "9999999")
    assert done.stdout == b"3000001\n" + content


def test_read_follows_links_and_files_that_say_they_are_empty(take, tmp_path):
    (tmp_path / "link").symlink_to(own(tmp_path / "f", b"there"))
    assert take(READ, tmp_path / "link", "9").stdout == b"5\nthere"
    assert take(READ, "/proc/self/status", "5").stdout == b"0\nName:"


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (lambda path: None, MISSING),
        (lambda path: path.mkdir(), DIRECTORY),
        (lambda path: os.mkfifo(path), SPECIAL),
        (lambda path: path.symlink_to("/dev/zero"), SPECIAL),
        (lambda path: path.symlink_to("/nowhere"), MISSING),
        (lambda path: path.symlink_to(path), MISSING),
        (lambda path: own(path, mode=0), FORBIDDEN),
    ],
    ids=["missing", "directory", "pipe", "device", "dangling link", "endless link", "forbidden"],
)
def test_read_says_what_it_can_not_read(make, status, take, tmp_path):
    make(tmp_path / "f")
    done = take(READ, tmp_path / "f", "9")
    assert (done.returncode, done.stdout) == (status, b"")


# --- write -----------------------------------------------------------------------------------------------


def test_write_makes_a_file_with_its_directories(take, tmp_path):
    file = tmp_path / "a b" / "-c" / "new\nfile"
    done = write(take, file, b"content")
    assert (done.returncode, done.stdout, file.read_bytes()) == (0, b"1\n", b"content")
    assert file.stat().st_mode & 0o7777 == 0o644
    assert file.parent.stat().st_mode & 0o7777 == 0o755
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o4755])
def test_write_replaces_a_file_and_keeps_its_mode(mode, take, tmp_path):
    file = own(tmp_path / "f", b"old", mode)
    before = file.stat().st_ino
    done = write(take, file, b"new")
    assert (done.returncode, done.stdout, file.read_bytes()) == (0, b"0\n", b"new")
    assert file.stat().st_mode & 0o7777 == mode
    assert file.stat().st_ino != before, "whoever had it open still reads the old one whole"


def test_write_takes_every_byte_of_a_large_file(take, tmp_path):
    content = os.urandom(3_000_001)
    assert write(take, tmp_path / "f", content).returncode == 0
    assert (tmp_path / "f").read_bytes() == content


@pytest.mark.parametrize("target", ["f", "./f", "../{here}/f", "{whole}/f", "second"])
def test_write_follows_links_to_the_file(target, take, tmp_path):
    file = own(tmp_path / "f", b"old", 0o600)
    (tmp_path / "second").symlink_to("f")
    (tmp_path / "link").symlink_to(target.format(here=tmp_path.name, whole=tmp_path))
    assert write(take, tmp_path / "link", b"new").stdout == b"0\n"
    assert (file.read_bytes(), (tmp_path / "link").is_symlink()) == (b"new", True)


def test_write_makes_the_file_a_link_points_to_but_not_its_directory(take, tmp_path):
    (tmp_path / "link").symlink_to("absent")
    assert write(take, tmp_path / "link", b"new").stdout == b"1\n"
    assert (tmp_path / "absent").read_bytes() == b"new"
    (tmp_path / "astray").symlink_to("no/where")
    assert write(take, tmp_path / "astray", b"new").returncode == MISSING
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (lambda path: path.mkdir(), DIRECTORY),
        (lambda path: path.symlink_to("/tmp"), DIRECTORY),
        (lambda path: os.mkfifo(path, 0o666), SPECIAL),
        (lambda path: path.symlink_to("/dev/null"), SPECIAL),
        (lambda path: path.symlink_to(path), MISSING),
        (lambda path: own(path, b"kept", 0o400), FORBIDDEN),
    ],
    ids=["directory", "link to one", "pipe", "device", "endless link", "read-only"],
)
def test_write_says_where_it_can_not_write(make, status, take, tmp_path):
    make(tmp_path / "f")
    before = sorted(os.listdir(tmp_path))
    assert write(take, tmp_path / "f", b"new").returncode == status
    assert sorted(os.listdir(tmp_path)) == before
    assert status != FORBIDDEN or (tmp_path / "f").read_bytes() == b"kept"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("locked/f", b"Permission denied"),
        ("file/f", b"Not a directory|File exists"),
        ("x" * 256, b"File name too long"),
    ],
)
def test_write_says_why_a_file_can_not_be_made(path, words, take, tmp_path):
    (tmp_path / "locked").mkdir()
    own(tmp_path / "file")
    done = write(take, tmp_path / path, b"new")
    assert done.returncode == BROKEN
    assert re.search(words, done.stderr)
    assert os.listdir(tmp_path / "locked") == []


@pytest.mark.parametrize("size", [0, 4, 6])
def test_content_of_another_size_changes_nothing(size, take, tmp_path):
    file = own(tmp_path / "f", b"old")
    assert write(take, file, b"12345", size=size).returncode == SHORT
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"old", ["f"])


def test_a_name_that_is_taken_is_not_written_over(take, tmp_path):
    """An agent that guessed the temporary name and put a link there."""
    (tmp_path / TEMPORARY).symlink_to(own(tmp_path / "victim", b"kept"))
    assert write(take, tmp_path / "f", b"new").returncode == BROKEN
    assert (tmp_path / "victim").read_bytes() == b"kept"
    assert not (tmp_path / "f").exists()


def test_a_file_over_the_limit_leaves_the_old_one(take, tmp_path):
    file = own(tmp_path / "f", b"old")
    done = write(
        take, file, b"x" * 10_000, limit=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    )
    assert done.returncode in (-signal.SIGXFSZ, BROKEN)
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"old", ["f"])


def test_the_program_knows_its_arguments(static_programs):
    for arguments in ([], ["read"], ["read", "f", "x"], ["write", "f", "t", "-"], ["erase", "f"]):
        done = subprocess.run([static_programs / "file", *arguments], capture_output=True)
        assert done.returncode == scripts.PROGRAM_USAGE
