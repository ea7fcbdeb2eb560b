"""Carries out this client's commands. What goes wrong is said on the screen, and ends nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from beige.tui import export
from beige.tui.clean import one_line
from beige.tui.commands import SWITCHES, Command, help_text
from beige.tui.pick import Pick

if TYPE_CHECKING:
    from beige.tui.app import BeigeApp


class Desk:
    def __init__(self, app: BeigeApp) -> None:
        self._app, self._api = app, app.api

    async def run(self, command: Command) -> None:
        await getattr(self, f"_{command.name}")(command.argument)

    @property
    def _where(self) -> tuple[str, str]:
        return self._app.status.agent, self._app.status.session

    async def _new(self, _: str) -> None:
        await self._app.open_session(self._app.status.agent, "")

    async def _help(self, _: str) -> None:
        await self._app.say(help_text())

    async def _quit(self, _: str) -> None:
        self._app.exit()

    async def _cancel(self, _: str) -> None:
        await self._app.action_cancel()

    async def _verbose(self, argument: str) -> None:
        await self._set({"verbose": SWITCHES[argument]})
        await self._app.say(f"verbose is {argument}")

    async def _thinking(self, level: str) -> None:
        await self._set({"thinkingLevel": None if level == "default" else level})
        await self._app.say(f"the model's thinking level is {level}, from the next prompt on")

    async def _set(self, changes: dict[str, bool | str | None]) -> None:
        self._app.settings_are(await self._api.settings(*self._where, changes))

    async def _status(self, _: str) -> None:
        agent, session = self._where
        settings = await self._api.settings(agent, session)
        status = self._app.status
        rows = [("agent", agent), ("session", session), ("model", status.model), ("gateway", self._app.url),
                ("connection", status.connection)]  # fmt: skip
        rows += [(name, f"{_word(it['value'])} ({it['layer']})") for name, it in settings.items()]
        rows += [
            ("usage", ", ".join(f"{name} {count}" for name, count in sorted(status.usage.items())) or "-")
        ]
        rows += [("cost", "-" if status.cost is None else f"${status.cost:.4f}")]
        await self._app.say("\n".join(f"{name:<14} {value}" for name, value in rows))

    async def _sessions(self, _: str) -> None:
        agent = self._app.status.agent
        found = await self._api.sessions(agent)
        if not found:
            await self._app.say(f"{agent} has no session yet")
            return
        choices = [(str(it.get("session", "")), _session_line(it)) for it in found]
        if chosen := await self._app.push_screen_wait(Pick(f"Sessions of {agent}; Esc goes back", choices)):
            await self._app.open_session(agent, chosen)

    async def _resume(self, session: str) -> None:
        agent = self._app.status.agent
        if not session:
            found = await self._api.sessions(agent)
            others = [
                str(it.get("session", "")) for it in found if it.get("session") != self._app.status.session
            ]
            if not others:
                await self._app.say(f"{agent} has no other session to resume")
                return
            session = others[0]
        await self._app.open_session(agent, session)

    async def _agent(self, agent: str) -> None:
        names = [str(it.get("name", "")) for it in await self._api.agents()]
        if not agent:
            choices = [(name, name) for name in names]
            agent = await self._app.push_screen_wait(Pick("Agents; Esc goes back", choices))
        if not agent:
            return
        if agent not in names:
            await self._app.say(f"there is no agent {agent}; there are {', '.join(names)}", "error")
            return
        await self._app.open_session(agent, "")

    async def _model(self, model: str) -> None:
        if not model:
            names = [str(it.get("model", "")) for it in await self._api.models(self._app.status.agent)]
            choices = [("default", "default: as configured"), *((name, name) for name in names)]
            model = await self._app.push_screen_wait(Pick("Models; Esc goes back", choices))
        if not model:
            return
        await self._set({"model": None if model == "default" else model})
        await self._app.say(f"from the next prompt on, {self._app.status.model} is asked first")

    async def _compact(self, instructions: str) -> None:
        if self._app.turns.running:
            await self._app.say("a turn is running: wait for its end, or cancel it", "error")
            return
        await self._app.say("summarising the session's older turns ...")
        result = await self._api.compact(*self._where, instructions)
        await self._app.say(
            f"{result.get('entries', 0)} entries are now a summary: {result.get('summary', '')}"
        )

    async def _export(self, path: str) -> None:
        agent, session = self._where
        entries = await self._api.history(agent, session)
        text = export.markdown(agent, session, entries)
        name = path or f"beige-{agent}-{session}.md".replace("/", "_")
        written = await asyncio.to_thread(export.write, name, text)
        await self._app.say(f"written to {written}")


def _session_line(session: dict[str, Any]) -> str:
    title = one_line(str(session.get("title", "")), 50)
    return (
        f"{str(session.get('updated', ''))[:16].replace('T', ' ')}  {title}  ({session.get('session', '')})"
    )


def _word(value: Any) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
