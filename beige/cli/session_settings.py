"""`beige sessions settings`: how one session is shown and answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from beige.errors import Malformed
from beige.paths import Home

if TYPE_CHECKING:
    from beige.bus import Bus
    from beige.messages.session_settings import SettingsReply, SettingsRequest

SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def settings(
    agent: Annotated[str, typer.Argument(help="The agent's name in config.json5.")],
    session: Annotated[str, typer.Argument(help="The session; it need not have been used yet.")],
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Go back to the default; may be repeated.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print them as one JSON object.")] = False,
) -> None:
    """Show a session's settings, with the layer each comes from, and change them.

    \b
    verbose=on|off          announce each tool call
    streaming=on|off        show the answer while it is written
    model=PROVIDER/MODEL    ask this one of the agent's models first
    thinkingLevel=LEVEL     off, minimal, low, medium, high

    \b
    Examples:
      beige sessions settings assistant s1
      beige sessions settings assistant s1 verbose=off thinkingLevel=high
      beige sessions settings assistant s1 --unset model
    """
    from beige.cli.calls import check_agent, run
    from beige.cli.terminal import emit

    request = parse(values or [], unset or [])
    home = Home.find()
    check_agent(home, agent)
    reply = run(_ask(home, agent, session, request))
    if json_output:
        import msgspec

        emit(msgspec.to_builtins(reply))
    else:
        _show(reply)


async def _ask(home: Home, agent: str, session: str, request: SettingsRequest) -> SettingsReply:
    from beige.cli.calls import CHANNEL, connected

    async with connected(home) as bus:
        reply: SettingsReply = await bus.call(
            "llm.settings", request, agent=agent, session=session, channel=CHANNEL
        )
    return reply


async def shown_as(bus: Bus, agent: str, session: str) -> dict[str, bool]:
    """How this session wants its turns shown here: `verbose` (tool calls are shown unless it says
    otherwise) and `streaming`."""
    from beige.cli.calls import CHANNEL
    from beige.messages.session_settings import SessionSettings, SettingsRequest

    request = SettingsRequest(defaults=SessionSettings(verbose=True, streaming=True))
    reply: SettingsReply = await bus.call(
        "llm.settings", request, agent=agent, session=session, channel=CHANNEL
    )
    return {name: bool(reply.settings[name].value) for name in ("verbose", "streaming")}


def parse(values: list[str], unset: list[str]) -> SettingsRequest:
    """`verbose=on`, ... as a request. Malformed, naming what is allowed."""
    import msgspec

    from beige.messages.session_settings import NAMES, SettingsRequest

    said: dict[str, bool | str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or name not in NAMES:
            raise Malformed(f"{text!r}: write KEY=VALUE; keys are {', '.join(NAMES)}")
        said[name] = _switch(name, value) if name in ("verbose", "streaming") else value
    for name in unset:
        if name not in NAMES:
            raise Malformed(f"--unset {name!r}: keys are {', '.join(NAMES)}")
    try:
        return msgspec.convert({"set": said, "unset": unset}, SettingsRequest)
    except msgspec.ValidationError as error:
        raise Malformed(f"{error} (thinkingLevel is off, minimal, low, medium or high)") from error


def _switch(name: str, value: str) -> bool:
    if value.lower() not in SWITCH:
        raise Malformed(f"{name} is on or off, not {value!r}")
    return SWITCH[value.lower()]


def _show(reply: SettingsReply) -> None:
    import sys

    from beige.cli.terminal import Writer, table

    rows = [("SETTING", "VALUE", "FROM")]
    for name, setting in reply.settings.items():
        value = setting.value if isinstance(setting.value, str) else "on" if setting.value else "off"
        rows.append((name, value, setting.layer))
    print(table(rows))
    for text in reply.notices:
        Writer(sys.stderr).line(f"beige: {text}", "yellow")
