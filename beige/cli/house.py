"""`beige up`, `down` and `restart`."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Annotated, Any

import typer

from beige.errors import Failed
from beige.paths import Home


def up(
    foreground: Annotated[
        bool, typer.Option(help="Stay attached; stop everything on Ctrl-C or SIGTERM.")
    ] = False,
    build: Annotated[bool, typer.Option(help="Build the sandbox image if it is missing.")] = True,
) -> None:
    """Check the configuration, start every process and return when all of them serve. Nothing is started
    when the configuration is wrong; nothing stays behind when a process can't start.

    \b
    Example:
      ANTHROPIC_API_KEY=... beige up
    """
    from beige.cli.setup import ensure
    from beige.cli.terminal import Progress
    from beige.supervisor import lifecycle

    home, progress, started = Home.find(), Progress(), time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    if ensure(home):
        print(f"wrote a first configuration: {home.config}", file=sys.stderr)
    environ = lifecycle.environ_of(home, os.environ)
    lifecycle.plan(home, environ)
    if not lifecycle.is_up(home):
        ensure_image(home, build)
    if foreground:
        _stay(home, progress)
        return
    try:
        outcome = lifecycle.up(home, environ, progress)
    finally:
        progress.done()
    if outcome == "started":
        _say_gateway(home)
        print(f"up after {time.monotonic() - started:.1f} s ({home.root})")
    elif outcome == "running":
        print(f"already up ({home.root})")
    else:
        print("already up, with another configuration: run `beige restart` to apply the change")


def down() -> None:
    """Stop every process, with what the agents are running. Workspaces and sessions stay.

    \b
    Example:
      beige down
    """
    from beige.supervisor import lifecycle

    print("stopped" if lifecycle.down(Home.find()) else "nothing was running")


def restart(
    service: Annotated[str, typer.Argument(help="One service, e.g. llm; left out: everything.")] = "",
) -> None:
    """Restart with the configuration of now. Variables that are not set here keep the value with which
    beige was started.

    \b
    Examples:
      beige restart          everything, after a change of config.json5
      beige restart tools    one service
    """
    from beige.cli.terminal import Progress
    from beige.supervisor import lifecycle

    home, progress = Home.find(), Progress()
    if not lifecycle.is_up(home):
        raise Failed("beige is not running: start it with `beige up`", executed="no")
    environ = lifecycle.environ_of(home, os.environ)
    try:
        if service:
            lifecycle.restart(home, service, environ, progress)
        else:
            lifecycle.plan(home, environ)  # a wrong configuration must not stop what runs
            lifecycle.down(home)
            lifecycle.up(home, environ, progress)
    finally:
        progress.done()
    print(f"restarted {service or 'everything'}")


def _say_gateway(home: Home) -> None:
    """A taken port is no reason to fail, but one to say."""
    from beige.cli.gateway_health import problem

    if home.http_socket.exists() and (said := problem(home)):
        print(f"beige: gateway: {said}", file=sys.stderr)


def _stay(home: Home, progress: Any) -> None:
    from beige.supervisor import lifecycle

    try:
        code = lifecycle.stay_up(home, os.environ, progress)
    except KeyboardInterrupt:
        code = 0
    if code == 0:
        print("stopped", file=sys.stderr)
        return
    raise Failed(f"supervisord ended with exit code {code}", executed="no")


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def ensure_image(home: Home, build: bool) -> None:
    """Build the images the agents need, if they are ours to build and are missing."""
    from beige.cli.image import OWN_TAGS
    from beige.config import load

    wanted = {agent.sandbox.image for agent in load(home).agents.values()}
    for tag, profile in OWN_TAGS.items():
        if tag in wanted:
            _ensure(home, tag, profile, build)


def _ensure(home: Home, tag: str, profile: str, build: bool) -> None:
    from beige.cli.image import build_image, status_of

    state = status_of(home, tag)
    if state.missing and not build:
        command = "beige image build" + (" --profile open" if profile == "open" else "")
        raise Failed(f"the image {tag} is missing: run `{command}`", executed="no")
    if state.missing:
        print(f"the image {tag} is missing; building it, once", file=sys.stderr)
        build_image(home, ["--profile", profile, "--tag", tag])
    elif state.text:
        print(f"beige: {state.text}", file=sys.stderr)
