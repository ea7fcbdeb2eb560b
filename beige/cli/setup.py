"""`beige setup`: directories, bus keys and a first configuration. Changes nothing that is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from beige.paths import Home

STARTER = Path(__file__).with_name("starter.json5")


def setup(
    json_output: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Make what beige needs in its home: private directories, a key for each process, a config.json5
    to start from. Safe to run again; `beige up` does the same.

    \b
    Example:
      beige --home ~/agents setup
    """
    from beige.cli.terminal import emit

    home = Home.find()
    created = ensure(home)
    if json_output:
        emit({"home": str(home.root), "config": str(home.config), "createdConfig": created})
    elif created:
        print(f"{home.root} is set up. Edit {home.config}, then run `beige up`.")
    else:
        print(f"{home.root} is set up. {home.config} was there already.")


def ensure(home: Home) -> bool:
    """Set `home` up. True if a first configuration was written. ConfigError if the one there is wrong."""
    from beige.config import load
    from beige.keys import write_private
    from beige.supervisor import lifecycle

    home.create()
    created = not home.config.exists()
    if created:
        write_private(home.config, STARTER.read_text())
    config = load(home, environ=lifecycle.environ_of(home, os.environ))
    if not lifecycle.is_up(home):  # a broker that runs knows the users it was started with
        lifecycle.setup(home, config)
    return created
