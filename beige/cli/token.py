"""`beige token`: who may use the HTTP API, for which agents and for what."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from beige.cli import new_app
from beige.paths import Home

app = new_app(help="Make, list and revoke tokens for the HTTP API.")


@app.callback()
def group() -> None:
    """Make, list and revoke tokens for the HTTP API.

    A token is shown once, when it is made; only its digest is kept. Changes count from the next request
    on, without a restart. The token made at set-up is in keys/http-token and may do everything.
    """


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Your name for it, e.g. ci.")],
    agent: Annotated[
        list[str], typer.Option("--agent", "-a", help="An agent it is for; again for more; * for all.")
    ],
    scope: Annotated[
        str, typer.Option("--scope", "-s", help="What it may do: prompt, exec, read, admin, by commas.")
    ],
    expires: Annotated[str, typer.Option(help="Lifetime: 30d, 12h, 90m or never.")] = "90d",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a token and print it. It is not kept: note it now.

    prompt: give tasks and change sessions. exec: run tools in the sandbox. read: agents, sessions, audit.
    admin: configuration and restart.

    \b
    Examples:
      beige token create ci --agent assistant --scope prompt,read --expires 30d
      beige token create ops --agent '*' --scope admin,read --expires 12h --json | jq -r .token
    """
    from datetime import UTC, datetime

    from beige import tokens
    from beige.cli.terminal import emit

    home = Home.find()
    scopes = _scopes(scope)
    _check_agents(home, agent)
    ends = tokens.expiry(expires, datetime.now(UTC).replace(microsecond=0))
    tokens.ensure(home)
    secret = tokens.create(home, name, tuple(dict.fromkeys(agent)), scopes, ends)
    if json_output:
        emit({"name": name, "token": secret, "agents": agent, "scopes": scopes, "expires": _time(ends)})
        return
    print(secret)
    print(f"token {name}: note it now, it is not kept; it expires {_time(ends) or 'never'}", file=sys.stderr)


@app.command("list")
def list_(
    json_output: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
) -> None:
    """List the tokens: name, agents, scopes, expiry. Not the tokens themselves: they are not kept.

    \b
    Example:
      beige token list
    """
    from datetime import UTC, datetime

    from beige import tokens
    from beige.cli.terminal import emit, table

    now = datetime.now(UTC)
    found = [_described(token, now) for token in tokens.read(Home.find())]
    if json_output:
        emit(found)
        return
    rows = [["NAME", "AGENTS", "SCOPES", "CREATED", "EXPIRES"]]
    for token in found:
        ends = f"{token['expires']}, over" if token["expired"] else token["expires"] or "never"
        rows.append([
            token["name"], ",".join(token["agents"]), ",".join(token["scopes"]), token["created"], ends,
        ])  # fmt: skip
    print(table(rows))


@app.command()
def revoke(name: Annotated[str, typer.Argument(help="The token's name.")]) -> None:
    """Take a token back. Its next request is refused, and streams it has open end.

    \b
    Example:
      beige token revoke ci
    """
    from beige import tokens

    tokens.revoke(Home.find(), name)
    print(f"revoked {name}")


def _scopes(text: str) -> tuple[Any, ...]:
    from beige import tokens
    from beige.config.problems import suggest
    from beige.errors import Malformed

    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in tokens.SCOPES:
            raise Malformed(f"no such scope: {name!r}; {suggest(name, tokens.SCOPES)}")
    if not names:
        raise Malformed(f"a token needs a scope: {', '.join(tokens.SCOPES)}")
    return names


def _check_agents(home: Home, agents: list[str]) -> None:
    from beige.cli.calls import check_agent
    from beige.tokens import ANY_AGENT

    for agent in agents:
        if agent != ANY_AGENT:
            check_agent(home, agent)


def _described(token: Any, now: Any) -> dict[str, Any]:
    return {
        "name": token.name,
        "agents": list(token.agents),
        "scopes": list(token.scopes),
        "created": _time(token.created),
        "expires": _time(token.expires),
        "expired": token.expired(now),
    }


def _time(moment: Any) -> str | None:
    return moment.isoformat().replace("+00:00", "Z") if moment else None
