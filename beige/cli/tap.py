"""`beige tap`: every message that crosses the bus, live or from a recording."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from beige.cli import new_app

if TYPE_CHECKING:
    from beige.cli.tap_recording import Recorder
    from beige.cli.tap_sequence import Sequence
    from beige.cli.tap_view import Filter, Loss
    from beige.tapevent import TapEvent, TapState

app = new_app()
PATIENCE_S = 5.0


@app.command()
def tap(
    agent: Annotated[str, typer.Option(help="Only this agent.")] = "",
    session: Annotated[str, typer.Option(help="Only this session.")] = "",
    service: Annotated[str, typer.Option(help="Only calls of this service, e.g. tools.")] = "",
    method: Annotated[str, typer.Option(help="Only this method, e.g. exec or sandbox.exec.")] = "",
    errors: Annotated[bool, typer.Option("--errors", help="Only errors.")] = False,
    bodies: Annotated[bool, typer.Option("--bodies", help="Show bodies, redacted.")] = False,
    heartbeats: Annotated[bool, typer.Option("--heartbeats", help="Show heartbeats too.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object per line, for jq.")] = False,
    seq: Annotated[
        bool, typer.Option("--seq", help="Draw each call on its way through the corridor.")
    ] = False,
    count: Annotated[int, typer.Option("-n", "--count", min=0, help="Stop after this many lines.")] = 0,
    record: Annotated[Path | None, typer.Option(help="Write what is shown to a new file.")] = None,
    replay: Annotated[Path | None, typer.Option(help="Show a recording instead of the live bus.")] = None,
) -> None:
    """Watch the messages on the bus, like tcpdump for agents. Ctrl-C ends it.

    \b
    Examples:
      beige tap --agent travel               every message of one agent's calls
      beige tap --seq --service tools        tool calls, drawn step by step
      beige tap --json | jq 'select(.code)'  what failed
    """
    from beige.cli.tap_view import Filter

    wanted = Filter(agent, session, service, method, errors, heartbeats)
    screen = Screen(wanted, json_output=json_output, seq=seq, bodies=bodies, count=count)
    # In the background of a script SIGINT is ignored; SIGTERM must end a recording as cleanly.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if record:
            screen.record_to(record)
        screen.show(_replayed(replay) if replay else _live(agent, bodies))
    except KeyboardInterrupt:
        pass  # the way to end it
    except BrokenPipeError:
        screen.reader_left()
    except FileNotFoundError:
        raise typer.BadParameter(f"{replay} does not exist", param_hint="--replay") from None
    except FileExistsError:
        raise typer.BadParameter(f"{record} exists already", param_hint="--record") from None
    finally:
        screen.close()


class Screen:
    """Where events go: the terminal or a pipe, and a recording."""

    def __init__(self, wanted: Filter, *, json_output: bool, seq: bool, bodies: bool, count: int) -> None:
        from beige.cli.tap_sequence import Sequence
        from beige.cli.tap_view import Loss

        self._wanted = wanted
        self._json, self._bodies, self._count = json_output, bodies, count
        self._sequence: Sequence | None = Sequence() if seq and not json_output else None
        self._loss: Loss = Loss()
        self._recorder: Recorder | None = None
        self._lines = 0

    def record_to(self, path: Path) -> None:
        from beige.cli.tap_recording import Recorder

        self._recorder = Recorder(path)

    def show(self, source: Iterator[tuple[bytes, TapEvent] | None]) -> None:
        """Show events until the source or the count ends; None is a moment in which nothing waits."""
        if self._sequence:
            typer.echo(self._sequence.header())
        for item in source:
            if item is None:
                self._flush()
                continue
            topic, event = item
            if lost := self._loss.note(topic, event):
                typer.echo(f"-- {lost} copies lost --", err=True)
            if self._wanted.matches(event):
                self._event(event)
            if self._count and self._lines >= self._count:
                return

    def _event(self, event: TapEvent) -> None:
        from beige.cli.tap_view import json_line, one_line

        if not self._bodies:
            event.body = None
        if self._recorder:
            self._recorder.write(event)
        if self._json:
            lines = [json_line(event)]
        elif self._sequence:
            lines = self._sequence.lines(event)
        else:
            lines = [one_line(event)]
        for line in lines:
            print(line)
            self._lines += 1

    def _flush(self) -> None:
        print(end="", flush=True)
        if self._recorder:
            self._recorder.flush()

    def reader_left(self) -> None:
        """Our output is read no more (`beige tap | head`): nothing may be flushed to it."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def close(self) -> None:
        self._flush()
        said = [f"{self._lines} lines"]
        if self._recorder:
            self._recorder.close()
            said.append(f"{self._recorder.events} events recorded")
        said.append(f"{self._loss.own} copies lost here, {self._loss.before_tap} before the tap")
        typer.echo("; ".join(said), err=True)


def _replayed(path: Path) -> Iterator[tuple[bytes, TapEvent] | None]:
    from beige.cli.tap_recording import replay

    for event in replay(path):
        event.topic_seq = 0  # a recording may be filtered: its gaps mean nothing
        yield b"", event


def _live(agent: str, bodies: bool) -> Iterator[tuple[bytes, TapEvent] | None]:
    """Events of the running house. Unavailable if no tap process answers."""
    import zmq

    from beige import tapevent
    from beige.errors import Unavailable
    from beige.paths import Home
    from beige.tapevent import STATE, WANT_BODIES

    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.linger = 0
        subscriber.rcvhwm = 10_000
        subscriber.connect(Home.find().tap_endpoint)
        for topic in ([WANT_BODIES] if bodies else []) + [agent.encode(), STATE]:
            subscriber.subscribe(topic)
        epoch = 0
        while True:
            if not subscriber.poll(100 if epoch else int(PATIENCE_S * 1000)):
                if not epoch:
                    raise Unavailable("no tap process answers for this home; is beige up?")
                yield None
                subscriber.poll()
            topic, payload = subscriber.recv_multipart()
            if topic != STATE:
                yield topic, tapevent.decode_event(payload)
            else:
                epoch = _listening(tapevent.decode_state(payload), bodies, epoch)


def _listening(state: TapState, bodies: bool, epoch: int) -> int:
    """Say when the broker begins to copy what we asked for (the state may answer somebody else). The
    epoch of the broker that does."""
    if not state.on or (bodies and not state.bodies) or state.epoch == epoch:
        return epoch
    typer.echo("listening again: the broker was restarted" if epoch else "listening", err=True)
    return state.epoch
