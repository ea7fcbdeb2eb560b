"""`beige image`: runs the image builder of the sandbox service as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from beige.cli import new_app
from beige.errors import Failed, Unavailable
from beige.paths import Home

DEFAULT_TAG = "beige-sandbox:latest"
OWN_TAGS = {DEFAULT_TAG: "sealed", "beige-sandbox:open": "open"}
"""The images that are ours to build, and the profile each is for."""
Profile = Annotated[Literal["sealed", "open"], typer.Option(help="The agents' profile it is for.")]
Tag = Annotated[str, typer.Option(help="Name of the image, instead of the profile's usual one.")]
STATUS_S = 60.0
BUILD_S = 3600.0
NO_ENGINE = 3
app = new_app(help="Build the image of the agents' containers.")


@dataclass(frozen=True)
class ImageState:
    state: str
    """`current`, `outdated` or `missing`."""
    text: str
    """What there is to say about it; empty when nothing."""

    @property
    def missing(self) -> bool:
        return self.state == "missing"


@app.command()
def build(
    profile: Profile = "sealed",
    tag: Tag = "",
    base: Annotated[str, typer.Option(help="Image to build on, instead of the one that is chosen.")] = "",
    force: Annotated[bool, typer.Option(help="Build even if it is up to date.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Progress as one JSON object per line.")
    ] = False,
) -> None:
    """Build the sandbox image, with progress; nothing happens if it is up to date.

    \b
    Examples:
      beige image build                    beige-sandbox:latest, for agents of the profile "sealed"
      beige image build --profile open     beige-sandbox:open, with apt, pip, npm and deno
    """
    options = [*_named(profile, tag), *(["--base", base] if base else []), *(["--force"] if force else [])]
    build_image(Home.find(), options + (["--json"] if json_output else []))


@app.command()
def status(
    profile: Profile = "sealed",
    tag: Tag = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether the image is there and up to date; exit code 1 if it isn't.

    \b
    Example:
      beige image status --json
    """
    arguments = ["status", *_named(profile, tag), *(["--json"] if json_output else [])]
    raise typer.Exit(_run(Home.find(), arguments, STATUS_S).returncode)


def _named(profile: str, tag: str) -> list[str]:
    return ["--profile", profile, *(["--tag", tag] if tag else [])]


def build_image(home: Home, options: list[str]) -> None:
    """Build with progress on this terminal. Failed if that fails; it has said why."""
    code = _run(home, ["build", *options], BUILD_S).returncode
    if code == NO_ENGINE:
        raise Unavailable("no Docker engine answers: `beige doctor` says what to do")
    if code != 0:
        raise Failed("the image could not be built", executed="maybe")


def status_of(home: Home, tag: str) -> ImageState:
    """Unavailable if no Docker engine answers."""
    options = _named(OWN_TAGS.get(tag, "sealed"), tag)
    done = _run(home, ["status", *options, "--json"], STATUS_S, quiet=True)
    if done.returncode == NO_ENGINE:
        raise Unavailable("no Docker engine answers: `beige doctor` says what to do")
    try:
        event = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise Failed(f"the image can't be checked: {done.stderr.strip()[-500:]}", executed="no") from None
    current = done.returncode == 0
    return ImageState(event.get("state", ""), "" if current else event.get("message", ""))


def _run(
    home: Home, arguments: list[str], timeout_s: float, *, quiet: bool = False
) -> subprocess.CompletedProcess[str]:
    """On Ctrl-C the builder gets the signal too, cleans up and ends; only then do we."""
    from beige.supervisor import environment

    environ = environment.helper(home, os.environ)
    command = [sys.executable, "-P", "-m", "services.sandbox.image", *arguments]
    pipe = subprocess.PIPE if quiet else None
    with subprocess.Popen(command, env=environ, cwd="/", text=True, stdout=pipe, stderr=pipe) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failed(
                f"the image builder did not end within {timeout_s:.0f} s", executed="maybe"
            ) from None
    return subprocess.CompletedProcess(command, process.returncode, out or "", err or "")
