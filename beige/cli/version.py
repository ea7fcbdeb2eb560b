"""`beige version`."""

from __future__ import annotations

from typing import Annotated

import typer


def version(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the versions of beige, its bus protocol and Python.

    \b
    Example:
      beige version --json
    """
    import platform

    from beige import wire
    from beige.cli.terminal import emit

    found = {"beige": installed(), "protocol": wire.VERSION, "python": platform.python_version()}
    if json_output:
        emit(found)
    else:
        print(f"beige {found['beige']} (bus protocol {found['protocol']}, Python {found['python']})")


def installed() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    try:
        return of("beige-agents")
    except PackageNotFoundError:
        return "not installed (running from a checkout)"
