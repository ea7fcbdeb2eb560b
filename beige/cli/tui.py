"""`beige tui`: the terminal UI, a client of the HTTP API."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from beige.errors import ConfigError, NotFound
from beige.paths import Home

MAX_TOKEN = 4096


def tui(
    agent: Annotated[str, typer.Argument(help="The agent to talk to; left out: the first one.")] = "",
    url: Annotated[
        str,
        typer.Option(help="The gateway: http://..., https://... or unix:///path; left out: the one here."),
    ] = "",
    token_file: Annotated[
        str, typer.Option(help="File with the token; left out: the one that `beige setup` made.")
    ] = "",
    session: Annotated[str, typer.Option(help="Go on with this session; left out: a new one.")] = "",
) -> None:
    """Talk to an agent in the terminal, and watch what it does. /help lists the commands; Esc cancels a
    turn, Ctrl-C twice leaves. Over SSH, and from another machine through a tunnel.

    \b
    Examples:
      beige tui
      beige tui assistant --session s1
      beige tui --url http://127.0.0.1:7433 --token-file ~/host.token     through ssh -L 7433:127.0.0.1:7433
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("", "`beige tui` needs a terminal", "`beige prompt` works in pipes")
    home = Home.find()
    # The address is looked at before the token is read.
    from beige.tui.api import Api, check_url

    # This home's socket lies in a directory that is the user's alone. A port that no gateway serves now
    # could be another user's of this machine, who would be shown the token.
    where = check_url(url or f"unix://{home.http_socket}")
    token = read_token(Path(token_file).expanduser() if token_file else home.http_token)
    from beige.tui.app import BeigeApp

    BeigeApp(Api(where, token), where, agent, session).run()


def read_token(path: Path) -> str:
    """NotFound and ConfigError say what to do; the token itself is in no message."""
    try:
        with path.open() as file:
            token = file.read(MAX_TOKEN).strip()
    except FileNotFoundError:
        raise NotFound(
            f"{path}: no such token file; `beige setup` or `beige token create` makes one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"can't be read as a token ({type(error).__name__})") from error
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise ConfigError(str(path), "does not hold a token", "it is one line of text")
    return token
