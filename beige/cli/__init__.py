"""`beige`, the operator's command line. Loads only the command that is run, so that help is instant."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from beige.errors import BeigeError, ConfigError

EXIT_ERROR, EXIT_CONFIG, EXIT_INTERRUPTED = 1, 2, 130

COMMANDS: dict[str, tuple[str, str]] = {
    "setup": ("beige.cli.setup:setup", "Make directories, keys and a first config.json5."),
    "up": ("beige.cli.house:up", "Start every process and wait until all of them serve."),
    "down": ("beige.cli.house:down", "Stop every process."),
    "restart": ("beige.cli.house:restart", "Restart everything, or one service."),
    "status": ("beige.cli.status:status", "What runs, as supervisord and as the bus see it."),
    "logs": ("beige.cli.logs:logs", "Show the services' logs."),
    "prompt": ("beige.cli.prompt:prompt", "Give an agent a task and watch it work."),
    "tui": ("beige.cli.tui:tui", "Talk to an agent in the terminal, with everything it does in sight."),
    "sessions": ("beige.cli.sessions:app", "List, show, resume, fork, cancel and remove conversations."),
    "exec": ("beige.cli.execute:execute", "Run one command in an agent's sandbox."),
    "demo": ("beige.cli.demo:demo", "Watch the whole system at work; no key is needed."),
    "channels": ("beige.cli.channels:channels", "Where people reach agents, and whether it works."),
    "tools": ("beige.cli.tools:app", "Call a plugin tool as an agent would."),
    "sandbox": ("beige.cli.sandbox:app", "List, inspect, verify, enter, stop and remove containers."),
    "egress": ("beige.cli.egress:app", "See and learn what agents connect to."),
    "image": ("beige.cli.image:app", "Build the sandbox image."),
    "tap": ("beige.cli.tap:app", "Watch the traffic on the bus."),
    "audit": ("beige.cli.audit:app", "Read the audit log."),
    "token": ("beige.cli.token:app", "Make, list and revoke tokens for the HTTP API."),
    "budget": ("beige.cli.budget:budget", "What the agents' models used, and what is left."),
    "config": ("beige.cli.config:app", "Check the configuration, print its schema."),
    "doctor": ("beige.cli.doctor:doctor", "Check every prerequisite and say how to fix it."),
    "version": ("beige.cli.version:version", "Print versions."),
}
"""Command to where it is (a function or a Typer app) and its line in the overview."""


class Root(TyperGroup):
    """Finds commands in `COMMANDS`, imports them when they are run, turns errors into exit codes."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(module), attribute)
        if isinstance(found, typer.Typer):
            command = typer.main.get_command(found)
        else:
            single = new_app()
            single.command()(found)
            command = typer.main.get_command(single)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "`beige --help` lists them."
            ctx.fail(f"No such command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            fail(error, EXIT_CONFIG)
        except BeigeError as error:
            fail(error, EXIT_ERROR)
        except KeyboardInterrupt:
            raise SystemExit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of our output is gone (`beige logs | head`): end quietly, as other tools do.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(EXIT_ERROR) from None


def new_app(**options: Any) -> typer.Typer:
    """A Typer app that prints plain help and lets errors through to `Root`."""
    return typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
        **options,
    )


def fail(error: BeigeError, code: int) -> None:
    from beige.cli.terminal import safe

    # A message may repeat what an agent said: a path, a tool's words.
    lines = safe(str(error)).splitlines() or [type(error).__name__]
    first = (
        f"{len(lines)} problems in the configuration:"
        if len(lines) > 1 and code == EXIT_CONFIG
        else lines.pop(0)
    )
    print("\n".join([f"beige: {first}", *(f"  {line.strip()}" for line in lines)]), file=sys.stderr)
    raise SystemExit(code)


app = new_app(cls=Root)


@app.callback()
def root(
    home: Annotated[
        str, typer.Option(help="Directory of this installation [default: $BEIGE_HOME or ~/.beige].")
    ] = "",
) -> None:
    """Run AI agents that do real work, each in its own sandbox, every call decided and written down.

    \b
    First steps:
      beige setup                            directories, keys, a config to start from
      beige up                               start everything
      beige prompt assistant "What is here?" give an agent a task
    """
    if home:
        os.environ["BEIGE_HOME"] = home


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # What agents produce may not fit a terminal's encoding; showing it must not fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="beige")
