"""`beige doctor`: each prerequisite, what is wrong with it and how to fix it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated

import typer

from beige.cli.finding import Finding, Verdict
from beige.errors import BeigeError, ConfigError
from beige.paths import MAX_SOCKET_PATH, Home

MIN_FREE_BYTES = 1024**3
MIN_API = (1, 41)
"""Docker 20.10."""


def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON array.")] = False,
) -> None:
    """Check everything beige needs on this machine, and say how to fix what is wrong. Exit code 1 if
    something is broken.

    \b
    Examples:
      beige doctor
      beige doctor --json | jq '.[] | select(.verdict != "ok")'
    """
    from dataclasses import asdict

    from beige.cli.terminal import Writer, emit

    found = list(examine(Home.find()))
    if json_output:
        emit([asdict(finding) for finding in found])
    else:
        _print(Writer(sys.stdout), found)
    raise typer.Exit(1 if any(finding.verdict == "broken" for finding in found) else 0)


def examine(home: Home) -> Iterator[Finding]:
    """Every check, each independent of the others."""
    checks: tuple[Callable[[Home], Iterator[Finding]], ...] = (
        _python, _packages, _home, _sockets, _disk, _docker, _image, _configuration, _running,
    )  # fmt: skip
    for check in checks:
        yield from check(home)


def _print(out: object, found: list[Finding]) -> None:
    from beige.cli.terminal import Writer

    assert isinstance(out, Writer)
    marks: dict[Verdict, tuple[str, str]] = {
        "ok": ("ok     ", "green"), "warning": ("warning", "yellow"), "broken": ("BROKEN ", "red"),
    }  # fmt: skip
    for finding in found:
        mark, style = marks[finding.verdict]
        out.styled(mark, style, end="  ")
        out.write(f"{finding.what:<14} {finding.text}\n")
        if finding.fix:
            out.write(f"{'':<25}fix: {finding.fix}\n")


def _python(_: Home) -> Iterator[Finding]:
    # An older one than 3.11 can't even read this file; pip and scripts/bootstrap.sh refuse it before.
    yield Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _packages(_: Home) -> Iterator[Finding]:
    needed = (
        "zmq",
        "msgspec",
        "msgpack",
        "json5",
        "pydantic",
        "docker",
        "supervisor",
        "uvloop",
        "anthropic",
        "openai",
        "starlette",
        "uvicorn",
    )
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        fix = "run scripts/bootstrap.sh, or pip install beige-agents"
        yield Finding("packages", "broken", f"missing: {', '.join(missing)}", fix)
    else:
        yield Finding("packages", "ok", f"all {len(needed)} installed, supervisord among them")


def _home(home: Home) -> Iterator[Finding]:
    if not home.root.exists():
        yield Finding("home", "warning", f"{home.root} does not exist yet", "run `beige setup`")
        return
    for path in (home.root, home.keys):
        if path.exists() and path.stat().st_uid != os.getuid():
            yield Finding(
                "home", "broken", f"{path} belongs to another user", "set BEIGE_HOME to a directory of yours"
            )
            return
        if path.exists() and path.stat().st_mode & 0o077:
            yield Finding("home", "broken", f"{path} is open to other users", f"chmod 700 '{path}'")
            return
    if not os.access(home.root, os.W_OK | os.X_OK):
        yield Finding(
            "home", "broken", f"{home.root} can't be written", "set BEIGE_HOME to a directory of yours"
        )
        return
    yield Finding("home", "ok", f"{home.root}, private")


def _sockets(home: Home) -> Iterator[Finding]:
    below = home.root / "run"
    if home.run == below:
        yield Finding("socket paths", "ok", f"below {below}")
    else:
        text = f"{below} is too long for sockets ({MAX_SOCKET_PATH} bytes at most): they are in {home.run}"
        yield Finding("socket paths", "ok", text)


def _disk(home: Home) -> Iterator[Finding]:
    place = home.root
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{free / 1024**3:.1f} GiB free at {place}"
    if free < MIN_FREE_BYTES:
        yield Finding("disk space", "warning", text, "free some: audit log, workspaces and image need it")
    else:
        yield Finding("disk space", "ok", text)


def _docker(_: Home) -> Iterator[Finding]:
    from beige.cli.engine_probe import NoEngine, probe

    try:
        engine = probe(os.environ)
    except NoEngine as error:
        yield Finding("Docker engine", "broken", str(error), error.fix)
        return
    if engine is None:
        yield Finding("Docker engine", "warning", f"{os.environ['DOCKER_HOST']} is not checked from here")
        return
    old = engine.api < MIN_API
    fix = "install Docker 20.10 or newer" if old else ""
    yield Finding("Docker engine", "broken" if old else "ok", engine.text, fix)
    if engine.seccomp:
        yield Finding("seccomp", "ok", "the engine can filter system calls")
    else:
        yield Finding(
            "seccomp", "broken", "the engine can't filter system calls", "use a kernel with CONFIG_SECCOMP"
        )
    for lack in engine.lacks:
        yield Finding("limits", "warning", f"the engine can't limit {lack}", "mount the cgroup controllers")


def _image(home: Home) -> Iterator[Finding]:
    from beige.cli.image import DEFAULT_TAG, status_of

    try:
        image = status_of(home, DEFAULT_TAG)
    except BeigeError as error:
        yield Finding("image", "broken", str(error), "fix the Docker engine first")
        return
    if image.text:
        verdict: Verdict = "broken" if image.missing else "warning"
        yield Finding("image", verdict, image.text, "run `beige image build`")
    else:
        yield Finding("image", "ok", f"{DEFAULT_TAG} is there and up to date")


def _configuration(home: Home) -> Iterator[Finding]:
    """Syntax, references, plugins, and every variable that some process needs."""
    from beige.cli.config import problems_of
    from beige.cli.doctor_egress import openings
    from beige.cli.doctor_hooks import listeners
    from beige.cli.doctor_sandbox import sandboxes
    from beige.config import check_everything
    from beige.supervisor.lifecycle import environ_of

    if not home.config.exists():
        yield Finding("configuration", "warning", "there is none yet", "run `beige setup`")
        return
    try:
        config = check_everything(home, environ_of(home, os.environ))
    except ConfigError as error:
        for problem in problems_of(error):
            text = ": ".join(part for part in (problem["path"], problem["problem"]) if part)
            yield Finding("configuration", "broken", text, problem["allowed"] or f"edit {home.config}")
        return
    yield Finding("configuration", "ok", f"{home.config}: {len(config.agents)} agents, every variable is set")
    yield from sandboxes(home, config, _runtimes())
    yield from openings(home, config)
    yield from listeners(config)


def _runtimes() -> Mapping[str, object] | None:
    """Of the engine; None if it does not say."""
    from beige.cli.engine_probe import NoEngine, probe

    try:
        engine = probe(os.environ)
    except NoEngine:
        return None
    return None if engine is None else engine.runtimes


def _running(home: Home) -> Iterator[Finding]:
    from beige.cli.calls import run
    from beige.cli.status import collect

    report = run(collect(home))
    if not report["up"]:
        yield Finding("processes", "ok", "not running (`beige up` starts them)")
        return
    for service in report["services"]:
        if not service["ok"]:
            text = f"{service['name']} does not serve ({service['state'].lower()})"
            yield Finding("processes", "broken", text, f"see `beige logs {service['name']}`")
        elif "description" in service:
            fix = f"edit {home.config}, then `beige restart {service['name']}`"
            yield Finding(service["name"], "warning", service["description"], fix)
    if report["ok"]:
        yield Finding("processes", "ok", f"all {len(report['services'])} serve")
