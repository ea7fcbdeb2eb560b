"""`beige config`: check the file, print its schema, show what it means."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

import typer

from beige.cli import EXIT_CONFIG, new_app
from beige.errors import ConfigError
from beige.paths import Home

app = new_app(help="Check the configuration, print its schema.")
HIDDEN = "(hidden)"
_IN_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
"""User and password of a URL."""
_SECRET = re.compile(r"key|token|secret|password|auth|cookie|credential", re.IGNORECASE)


@app.command()
def check(
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the problems as one JSON document.")
    ] = False,
) -> None:
    """Check config.json5 as `beige up` does: every problem at once, each with its place in the file, what
    is wrong and what is allowed. Exit code 2 if there is one.

    \b
    Example:
      beige config check
    """
    from beige.cli.terminal import emit
    from beige.config import check_everything
    from beige.supervisor.lifecycle import environ_of

    home = Home.find()
    try:
        config = check_everything(home, environ_of(home, os.environ))
    except ConfigError as error:
        if not json_output:
            raise
        emit({"ok": False, "file": str(home.config), "problems": problems_of(error)})
        raise typer.Exit(EXIT_CONFIG) from None
    if json_output:
        emit({"ok": True, "file": str(home.config), "problems": []})
    else:
        print(f"{home.config} is fine: agents {', '.join(config.agents) or 'none'}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of config.json5, for editors and for reading.

    \b
    Example:
      beige config schema > config.schema.json
    """
    from beige.cli.terminal import emit
    from beige.config.schema import json_schema

    emit(json_schema())


@app.command()
def show() -> None:
    """Print the configuration with its defaults filled in, as JSON. Secrets are not resolved, and what was
    written into the file itself instead of a variable is hidden.

    \b
    Example:
      beige config show | jq .agents.assistant.sandbox
    """
    from beige.cli.terminal import emit
    from beige.config import load
    from beige.supervisor.lifecycle import environ_of

    home = Home.find()
    config = load(home, environ=environ_of(home, os.environ))
    emit(without_secrets(config.model_dump(mode="json", by_alias=True)))


def problems_of(error: ConfigError) -> list[dict[str, str]]:
    from beige.config import ConfigProblems
    from beige.config.problems import dotted

    if isinstance(error, ConfigProblems):
        return [
            {"path": dotted(p.location), "problem": p.problem, "allowed": p.allowed} for p in error.problems
        ]
    return [{"path": error.path, "problem": error.problem, "allowed": error.allowed}]


def without_secrets(value: Any, key: str = "") -> Any:
    """`value` with every text hidden that stands under a name like a secret's and is no variable."""
    if isinstance(value, dict):
        return {k: without_secrets(v, k if not _SECRET.search(key) else key) for k, v in value.items()}
    if isinstance(value, list):
        return [without_secrets(item, key) for item in value]
    if isinstance(value, str) and "${" not in value:
        return HIDDEN if value and _SECRET.search(key) else _IN_URL.sub(HIDDEN, value)
    return value
