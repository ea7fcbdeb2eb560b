"""Builds the sandbox image from nothing, and says whether the one at hand is up to date.

    python -m services.sandbox.image build [--profile P] [--tag T] [--base IMAGE] [--force] [--json]
    python -m services.sandbox.image status [--profile P] [--tag T] [--base IMAGE] [--json]

Progress goes to stderr, a line per step; with --json as one JSON object per line to stdout. Exit codes:
0 done (status: up to date), 1 failed (status: missing or outdated), 3 no Docker engine, 130 interrupted.

The recipe is everything that decides what is in the image; its hash is the image's `beige.recipe` label.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from beige.errors import BeigeError, Failed, Unavailable
from beige.paths import image_dir
from services.sandbox import engine_build
from services.sandbox.engine_build import BuildEngine, ImageInfo
from services.sandbox.image_programs import DENO, NODE, fetch, install, run, versions

DEFAULT_TAG = "beige-sandbox:latest"
TAGS = {"sealed": DEFAULT_TAG, "open": "beige-sandbox:open"}
"""Profile, which is the Dockerfile's target, to the image's usual name."""
PROGRAMS = {"sealed": (DENO,), "open": (DENO, NODE)}
RECIPE_LABEL = "beige.recipe"
PROFILE_LABEL = "beige.profile"
STAGE_LABEL = "beige.stage"
REGISTRY_BASE = "debian:bookworm-slim"
PULL_PATIENCE_S = 10.0
NOT_IN_CONTEXT = {"mkseccomp.py", "seccomp.json", "seccomp-root.json"}
"""Files of image/ that are used when a container is created, not when the image is built."""
BASE_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENGINE_HELP = "start it, or run scripts/engine.sh (as root on Debian or Ubuntu it installs one)"


# --- the recipe -------------------------------------------------------------------------------------


def context_files(source: Path) -> list[Path]:
    """The files of image/ that are sent to the engine, in a stable order, relative to `source`."""
    found = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    return sorted(
        path for path in found if path.name not in NOT_IN_CONTEXT and "__pycache__" not in path.parts
    )


def packages(source: Path) -> list[str]:
    lines = (source / "packages.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def digest(*parts: bytes) -> str:
    """Of the parts, each preceded by its length, so that no two lists of parts look alike."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def recipe_hash(source: Path, base: str | None, architecture: str, profile: str = "sealed") -> str:
    """`base` is what the operator asked for. Which base was found when he did not ask does not count:
    an image built without a registry stays good when there is one again."""
    files = [
        part for path in context_files(source) for part in (str(path).encode(), (source / path).read_bytes())
    ]
    wheels = [wheel.requirement().encode() for wheel in PROGRAMS[profile]]
    return digest((base or "auto").encode(), architecture.encode(), profile.encode(), *wheels, *files)[:16]


# --- progress ---------------------------------------------------------------------------------------


class Reporter:
    """One line per step, for a person or for a program."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._started = time.monotonic()

    def event(self, event: str, text: str, **fields: Any) -> None:
        if self._as_json:
            print(json.dumps({"event": event, **fields, "message": text}), flush=True)
        else:
            print(f"image: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Times the block; the function it gives takes a word on how the step went."""
        started = time.monotonic()
        notes: list[str] = []
        if self._as_json:
            self.event("start", name, step=name)
        yield notes.append
        seconds = round(time.monotonic() - started, 1)
        note = f" ({', '.join(notes)})" if notes else ""
        text = f"{name}{note}" if self._as_json else f"{name + note:<60} {seconds:6.1f} s"
        self.event("step", text, step=name, seconds=seconds)

    def line(self, text: str) -> None:
        """Build output: too much for a person, useful to a program."""
        if self._as_json:
            self.event("log", text)

    def seconds(self) -> float:
        return round(time.monotonic() - self._started, 1)


# --- the base ---------------------------------------------------------------------------------------


def choose_base(engine: BuildEngine, source: Path, cache: Path, wanted: str | None, report: Reporter) -> str:
    """A reference that the engine holds. Without a wish: what is there already, then the registry, then
    one made from this machine's package sources."""
    with report.step("base image") as note:
        if wanted:
            if engine.find(wanted) is None and not engine.pull(wanted, PULL_PATIENCE_S):
                raise Failed(f"the base image {wanted} is not here and cannot be pulled")
            note(wanted)
            return wanted
        own = own_base(source)
        for reference in (REGISTRY_BASE, own.reference):
            if engine.find(reference) is not None:
                note(reference)
                return reference
        if engine.pull(REGISTRY_BASE, PULL_PATIENCE_S):
            note(f"pulled {REGISTRY_BASE}")
            return REGISTRY_BASE
        note("no registry")
    make_own_base(engine, own, cache, report)
    return own.reference


@dataclass(frozen=True)
class OwnBase:
    """A base made by mmdebstrap."""

    suite: str
    sources: tuple[Path, ...]
    """The machine's apt source files for `suite`; none: mmdebstrap's default for the suite."""
    packages: tuple[str, ...]

    @property
    def reference(self) -> str:
        return f"beige-base:{self.suite}-{self.key}"

    @property
    def key(self) -> str:
        return digest(self.suite.encode(), *(name.encode() for name in self.packages))[:12]


def own_base(source: Path, etc: Path = Path("/etc")) -> OwnBase:
    suite = _codename(etc) or "bookworm"
    return OwnBase(suite, tuple(apt_sources(etc / "apt", suite)), tuple(packages(source)))


def _codename(etc: Path) -> str | None:
    with contextlib.suppress(OSError):
        found = re.search(r"^VERSION_CODENAME=\"?(\w+)", (etc / "os-release").read_text(), re.MULTILINE)
        return found[1] if found else None
    return None


def apt_sources(apt: Path, suite: str) -> list[Path]:
    """The source files that name only `suite` and its pockets (updates, security): the distribution's
    own. Those of third parties stay out of the image."""
    candidates = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    pockets = {suite, *(f"{suite}-{pocket}" for pocket in ("updates", "security", "backports"))}
    return [path for path in candidates if path.is_file() and _suites(path) and _suites(path) <= pockets]


def _suites(path: Path) -> set[str]:
    text = path.read_text(errors="replace")
    if path.suffix == ".sources":
        return {suite for line in re.findall(r"^Suites:(.*)$", text, re.MULTILINE) for suite in line.split()}
    one_line = re.compile(r"^\s*deb\s+(?:\[[^\]]*\]\s+)?\S+\s+(\S+)", re.MULTILINE)
    return set(one_line.findall(text)) if path.name.endswith(".list") else set()


def make_own_base(engine: BuildEngine, base: OwnBase, cache: Path, report: Reporter) -> None:
    tar = cache / f"base-{base.suite}-{base.key}.tar"
    if not tar.exists():
        require_mmdebstrap(report)
        with report.step("mmdebstrap") as note:
            mmdebstrap(base, tar)
            note(f"{tar.stat().st_size >> 20} MB")
    with report.step("import") as note:
        engine.import_tar(tar, base.reference, [f"ENV {BASE_PATH}"])
        note(base.reference)


def require_mmdebstrap(report: Reporter) -> None:
    if shutil.which("mmdebstrap"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Failed(
            f"no registry offers {REGISTRY_BASE}, and mmdebstrap, which could make a base from Debian"
            " packages, is not installed: install it (apt-get install mmdebstrap), or name a base image"
            " that is already here with --base"
        )
    with report.step("apt-get install mmdebstrap"):
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], deadline_s=300, **quiet)
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "mmdebstrap"],
            deadline_s=600, **quiet)  # fmt: skip


def mmdebstrap(base: OwnBase, tar: Path) -> None:
    """Documentation is stripped at the end: excluding it while unpacking costs twice the time."""
    strip = "rm -rf " + " ".join(
        f'"$1"/usr/share/{name}' for name in ("doc", "man", "info", "locale", "lintian")
    )
    with tempfile.TemporaryDirectory(dir=fast_directory(), prefix="beige-base-") as work:
        part = Path(work) / "base.tar"
        run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(base.packages)}",
             "--dpkgopt=force-unsafe-io", '--aptopt=Acquire::Languages "none"',
             '--aptopt=APT::Install-Recommends "false"', *apt_proxy_options(),
             f"--customize-hook={strip}", "--format=tar", base.suite, str(part), *map(str, base.sources)],
            deadline_s=1200, TMPDIR=work,
        )  # fmt: skip
        install(part, tar)


def fast_directory() -> str | None:
    """Memory instead of a disk where there is enough: dpkg's syncing dominates otherwise, 94 s for 26."""
    shm = Path("/dev/shm")  # noqa: S108 - private directories below it
    if shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 2 << 30:
        return str(shm)
    return None


def apt_proxy_options() -> list[str]:
    """mmdebstrap does not read the machine's apt configuration; a proxy in it is needed all the same."""
    if not shutil.which("apt-config"):
        return []
    names = "Acquire::http::Proxy", "Acquire::https::Proxy"
    done = subprocess.run(
        ["apt-config", "dump", "--format", "%F %v%n", *names],
        capture_output=True, text=True, timeout=10,
    )  # fmt: skip
    pairs = (line.split(" ", 1) for line in done.stdout.splitlines())
    return [f'--aptopt={pair[0]} "{pair[1]}"' for pair in pairs if pair[0] in names and pair[1:] and pair[1]]


# --- the build --------------------------------------------------------------------------------------


def compile_on_host(source: Path, out: Path, architecture: str, report: Reporter) -> None:
    """Fills `out`, or leaves it empty: then the image's builder stage installs a compiler and does it."""
    with report.step("static programs") as note:
        if platform.system() != "Linux" or platform.machine() != architecture or not shutil.which("gcc"):
            note("left to the builder stage: no compiler for the engine here")
            return
        try:
            run(["sh", str(source / "native.sh"), str(out)], deadline_s=120)
        except Failed:
            shutil.rmtree(out)
            out.mkdir()
            note("left to the builder stage: this machine's gcc cannot link them statically")


CONTEXT_NAMES = {"deno": "deno/deno", "node": "node/node.tar"}


def write_context(out: BinaryIO, source: Path, native: Path, programs: Mapping[str, Path]) -> None:
    """A tar that does not depend on this machine's umask, users or clocks."""
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in context_files(source):
            _add(tar, source / path, str(path))
        _add(tar, native, "native")
        for path in sorted(native.iterdir()):
            _add(tar, path, f"native/{path.name}")
        for name, path in programs.items():
            _add(tar, path, CONTEXT_NAMES[name])
    out.seek(0)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tar.gettarinfo(str(path), arcname=name)
    executable = entry.isdir() or name.startswith(("native/", "deno/"))
    entry.mode = 0o755 if executable else 0o644
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = "root"
    if entry.isdir():
        tar.addfile(entry)
        return
    with path.open("rb") as content:
        tar.addfile(entry, content)


def build(engine: BuildEngine, options: argparse.Namespace, report: Reporter) -> ImageInfo:
    source, cache = image_dir(), cache_dir()
    architecture = engine.architecture()
    profile, wheels = options.profile, PROGRAMS[options.profile]
    recipe = recipe_hash(source, options.base, architecture, profile)
    before = engine.find(options.tag)
    if before and before.labels.get(RECIPE_LABEL) == recipe and not options.force:
        return before
    stages_before = engine.unnamed(STAGE_LABEL)
    base = choose_base(engine, source, cache, options.base, report)
    programs = {wheel.name: fetch(wheel, cache, architecture, report) for wheel in wheels}
    with tempfile.TemporaryDirectory(prefix="beige-image-") as work, tempfile.TemporaryFile() as context:
        native = Path(work) / "native"
        native.mkdir()
        compile_on_host(source, native, architecture, report)
        with report.step("docker build") as note:
            write_context(context, source, native, programs)
            image_id = engine.build(
                context, options.tag, target=profile, arguments={"BASE_IMAGE": base}, on_line=report.line,
                labels={
                    RECIPE_LABEL: recipe, PROFILE_LABEL: profile, "beige.base": base, **versions(*wheels)
                },
            )  # fmt: skip
            note(image_id.removeprefix("sha256:")[:12])
    if before and before.id != image_id and RECIPE_LABEL in before.labels:
        engine.discard(before.id)
        for stage in stages_before:
            engine.discard(stage)
    return ImageInfo(image_id, {RECIPE_LABEL: recipe})


def cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(root) / "beige"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two builds would do the same work twice; the second waits, and then finds it done."""
    with (cache_dir() / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- commands ---------------------------------------------------------------------------------------


def command_build(engine: BuildEngine, options: argparse.Namespace, report: Reporter) -> int:
    before = engine.find(options.tag)
    with one_at_a_time():
        image = build(engine, options, report)
    built = before is None or before.id != image.id
    what = "built" if built else "up to date"
    report.event(
        "done", f"{options.tag} {what} in {report.seconds()} s", tag=options.tag, image=image.id,
        recipe=image.labels[RECIPE_LABEL], built=built, seconds=report.seconds(),
    )  # fmt: skip
    return 0


def command_status(engine: BuildEngine, options: argparse.Namespace, report: Reporter) -> int:
    recipe = recipe_hash(image_dir(), options.base, engine.architecture(), options.profile)
    found = engine.find(options.tag)
    actual = found.labels.get(RECIPE_LABEL) if found else None
    state = "missing" if found is None else "up to date" if actual == recipe else "outdated"
    report.event(
        "status", f"{options.tag} is {state}", tag=options.tag, state=state.replace(" ", "_"),
        image=found.id if found else None, recipe=actual, wanted=recipe,
    )  # fmt: skip
    return 0 if state == "up to date" else 1


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m services.sandbox.image", description="The sandbox image."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("build", "status"):
        command = commands.add_parser(name)
        command.add_argument("--profile", choices=tuple(TAGS), default="sealed")
        command.add_argument("--tag", help="name of the image instead of the profile's usual one")
        command.add_argument("--base", metavar="IMAGE", help="base image instead of the one that is found")
        command.add_argument("--json", action="store_true", help="one JSON object per line on stdout")
    commands.choices["build"].add_argument("--force", action="store_true", help="build even if up to date")
    options = parser.parse_args(arguments)
    options.tag = options.tag or TAGS[options.profile]
    return options


def _terminate(_signo: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    report = Reporter(options.json)
    # Temporary directories are removed on the way out, whichever signal it is.
    signal.signal(signal.SIGTERM, _terminate)
    commands = {"build": command_build, "status": command_status}
    try:
        with contextlib.closing(engine_build.connect()) as engine:
            return commands[options.command](engine, options, report)
    except Unavailable as error:
        report.event("error", f"{error}: {ENGINE_HELP}", code=error.code)
        return 3
    except BeigeError as error:
        report.event("error", str(error), code=error.code)
        return 1
    except KeyboardInterrupt:
        report.event("error", "interrupted", code="cancelled")
        return 130


if __name__ == "__main__":
    sys.exit(main())
