"""`beige sandbox shell`: a prompt whose every line is one governed, audited exec.

Not a terminal inside: that would be one record in the audit log with keystrokes nobody can read, and output
that drives the operator's terminal. Each line is decided, written down and cleaned as `beige exec` is; what
carries over from line to line is the directory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from beige.paths import Home

WORKSPACE = "/workspace"
MAX_LINE = 64 * 1024
MAX_DIRECTORY = 4096
INTERRUPTED = 130
LINE = """beige_at=$1
trap 'beige_code=$?; printf "%s%s\\n" "$beige_at" "$PWD"; exit $beige_code' EXIT
eval "$2"
"""
"""Runs the line ($2) and then prints the mark ($1) and where it left the shell. Whoever forges the mark
inside chooses the directory that the next line starts in, which the line could do itself."""


def shell(
    agent: Annotated[str, typer.Argument(help="The agent whose sandbox it is.")],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds per line; 0: the agent's deadline.")] = 0.0,
) -> None:
    """Type commands into an agent's sandbox. Each line is a governed exec of its own, in the audit log like
    the agent's; `cd` carries over, variables don't. Ctrl-C ends a command, Ctrl-D the shell. The exit code
    is the last command's. Lines may also come from a pipe.

    \b
    Examples:
      beige sandbox shell assistant
      echo 'cd /tmp; ls' | beige sandbox shell assistant
    """
    from beige.cli.calls import check_agent

    home = Home.find()
    check_agent(home, agent)
    session = Shell(home, agent, timeout)
    for line in session.lines():
        if line.strip():
            session.run(line)
    raise typer.Exit(session.code)


class Shell:
    """Where the next line starts, and how the last one ended."""

    def __init__(self, home: Home, agent: str, timeout_s: float) -> None:
        self._home, self._agent, self._timeout_s = home, agent, timeout_s
        self.directory, self.code = WORKSPACE, 0

    def lines(self) -> Iterator[str]:
        """From the terminal, with a prompt, or from the pipe."""
        if not sys.stdin.isatty():
            while line := sys.stdin.readline(MAX_LINE):
                yield line.rstrip("\n")
            return
        import readline  # noqa: F401 - gives input() its line editing

        from beige.cli.printable import printable

        while True:
            try:
                yield input(f"{self._agent}:{printable(self.directory)}$ ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()

    def run(self, line: str) -> None:
        """One line, its output as it comes. An error of beige's is shown, and the shell goes on."""
        from beige.cli.calls import run
        from beige.cli.terminal import Writer
        from beige.errors import BeigeError

        try:
            self.code = run(self._exec(line))
        except BeigeError as error:
            Writer(sys.stderr).line(f"beige: {error}", "yellow")
            self.code = 1
        except KeyboardInterrupt:
            Writer(sys.stderr).write("\n")
            self.code = INTERRUPTED

    async def _exec(self, line: str) -> int:
        import secrets

        from beige.cli.calls import CHANNEL, connected
        from beige.cli.terminal import Writer
        from beige.messages.sandbox import ExecRequest
        from beige.wire import MAX_TTL_S

        mark = f"[{secrets.token_hex(8)}]"
        argv = ["/bin/bash", "-c", LINE, "shell", mark, line]
        request = ExecRequest(argv=argv, cwd=self.directory, timeout_s=self._timeout_s)
        out, err, tail = Writer(sys.stdout), Writer(sys.stderr), Tail(mark)
        async with (
            connected(self._home) as bus,
            bus.open("sandbox.exec", request, agent=self._agent, channel=CHANNEL, ttl_s=MAX_TTL_S) as stream,
        ):
            async for item in stream:
                if item.stream == "stdout":
                    out.bytes(tail.take(item.data))
                else:
                    err.bytes(item.data)
            result: Any = await stream.result()
        if result.stdout_cut:
            # Past the limit nothing came as an item; the end is in the result.
            out.bytes(tail.rest() + f"\n[{result.stdout_cut} bytes left out]\n".encode())
            tail.take(result.stdout[-MAX_DIRECTORY:])
        out.bytes(tail.rest())
        self.directory = tail.directory or self.directory
        return int(result.exit_code)


class Tail:
    """Holds back what could be the mark and the directory behind it, and shows the rest."""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._held = b""
        self.directory = ""

    def take(self, data: bytes) -> bytes:
        """What of the output so far may be shown."""
        self._held += data
        found = self._held.rfind(self._mark)
        if found >= 0 and len(self._held) - found <= len(self._mark) + MAX_DIRECTORY + 1:
            room = len(self._held) - found
        else:  # none, or one that somebody else printed: more follows it than a directory
            room = self._begun()
        shown = self._held[: len(self._held) - room]
        self._held = self._held[len(shown) :]
        return shown

    def _begun(self) -> int:
        """How many bytes at the end could be the start of the mark."""
        lengths = range(min(len(self._mark) - 1, len(self._held)), 0, -1)
        return next((n for n in lengths if self._held.endswith(self._mark[:n])), 0)

    def rest(self) -> bytes:
        """What is left to be shown at the end."""
        held, self._held = self._held, b""
        before, mark, directory = held.rpartition(self._mark)
        if not mark:
            return held
        path = directory.removesuffix(b"\n").decode("utf-8", "replace")
        if path.startswith("/") and "\0" not in path and len(path) <= MAX_DIRECTORY:
            self.directory = path
        return before
