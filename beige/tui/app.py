"""The terminal UI: what is on the screen, which key does what, and which session is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Static

from beige.errors import BeigeError
from beige.tui.api import Api, ApiError, Away
from beige.tui.commands import Prompt, parse
from beige.tui.desk import Desk
from beige.tui.editor import Editor
from beige.tui.events import before_last_turn, replay, unfinished
from beige.tui.status import Status
from beige.tui.style import CSS
from beige.tui.transcript import Transcript
from beige.tui.turns import Turns, failure

WATCH_S, RETRY_S = 3.0, 1.0
"""Between two looks whether the gateway is there; between two attempts to begin."""
REPLAYED = 300
"""Entries of a session that are shown when it is opened; /export has all."""


class BeigeApp(App[None]):
    CSS = CSS
    TITLE = "beige"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("escape", "cancel", "Cancel"),
        Binding("ctrl+c", "interrupt", "Leave", priority=True),
        Binding("pageup", "scroll(-1)", "Up", priority=True),
        Binding("pagedown", "scroll(1)", "Down", priority=True),
    ]

    def __init__(self, api: Api, url: str, agent: str = "", session: str = "") -> None:
        super().__init__()
        self.api, self.url = api, url
        self._wanted = agent, session
        self.status = Status()
        self.transcript, self.editor = Transcript(), Editor()
        self.line = Static("", id="status", markup=False)
        self.turns = Turns(api, self.transcript, self.status, changed=self.show_status, reload=self._reload)
        self._desk = Desk(self)
        self._windows: dict[str, int] = {}
        """Tokens that each of the agent's models can hold; 0: not told."""
        self._leaving = False
        """Ctrl-C was pressed once."""

    def compose(self) -> ComposeResult:
        yield self.transcript
        yield self.line
        yield self.editor

    def on_mount(self) -> None:
        self.editor.focus()
        self.set_interval(1.0, self.transcript.tick)
        self.set_interval(WATCH_S, self._watch)
        self.show_status()
        self.do(self._begin())

    async def on_unmount(self) -> None:
        await self.turns.leave()
        await self.api.close()

    # --- sessions -----------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Wait for the gateway, then open what was asked for: else the first agent, a new session."""
        agent, session = self._wanted
        told = False
        while True:
            try:
                names = [str(it.get("name", "")) for it in await self.api.agents()]
                break
            except Away as error:
                if not told:
                    told = True
                    self._connection("offline")
                    await self.say(f"no gateway at {self.url} yet ({error}); trying again", "error")
                await asyncio.sleep(RETRY_S)
        self._connection("connected")
        if agent and agent not in names:
            await self.say(f"there is no agent {agent}; there are {', '.join(names)}", "error")
            agent = session = ""
        if not agent and len(names) > 1:
            await self.say(f"Agents: {', '.join(names)}. This is {names[0]}; /agent changes it.")
        if not names:
            await self.say("this token reaches no agent", "error")
            return
        await self.open_session(agent or names[0], session)

    async def open_session(self, agent: str, session: str, why: str = "") -> None:
        """Show a session; "": a new one. A turn that is running in it is followed. `why`: it was open
        before, and is read again."""
        if self.turns.running and not why:
            await self.say("the running turn goes on; /resume comes back to it")
        self.status.opening = True
        try:
            running = await self._open(agent, session or await self.api.create(agent), follow=not why)
        finally:
            self.status.opening = False
            self.show_status()
        await self.say(why or f"{agent}, session {self.status.session}")
        if running:
            self.turns.adopt()

    async def _open(self, agent: str, session: str, *, follow: bool) -> bool:
        """Ask for everything first: what can't be had leaves the session that is open. True if a turn
        is to be followed."""
        entries = await self.api.history(agent, session)
        settings = await self.api.settings(agent, session)
        models = await self.api.models(agent)
        self._windows = {str(it.get("model", "")): int(it.get("contextWindow") or 0) for it in models}
        await self.turns.open(agent, session)
        self.status.session_is(agent, session, "")
        await self.transcript.clear()
        running = follow and unfinished(entries)
        await self._show_past(before_last_turn(entries) if running else entries)
        self.settings_are(settings)
        return running

    async def _show_past(self, entries: list[dict[str, Any]]) -> None:
        past = replay(entries)
        self.editor.past.replace([event.text for event in past if event.kind == "prompt"])
        for event in past:
            self.status.saw(event)
        if len(past) > REPLAYED:
            await self.say(f"the last {REPLAYED} of {len(past)} events; /export has all")
        await self.transcript.show(past[-REPLAYED:])
        await self.transcript.end_turn("its end is not in the session's file")

    async def _reload(self, why: str) -> None:
        """The gateway lost a turn's events: the session's file has the truth."""
        self._connection("connected")
        text = f"the gateway was restarted or no longer has this turn ({why}); shown from the session's file"
        await self.open_session(self.status.agent, self.status.session, text)

    def settings_are(self, settings: dict[str, dict[str, Any]]) -> None:
        values = {name: setting.get("value") for name, setting in settings.items()}
        self.transcript.unfold(bool(values.get("verbose")))
        self.transcript.streaming = bool(values.get("streaming", True))
        model = str(values.get("model", ""))
        self.status.chosen(model, self._windows.get(model, 0))
        self.show_status()

    # --- what the user does -------------------------------------------------------------------------

    async def on_editor_sent(self, message: Editor.Sent) -> None:
        self.transcript.anchor()
        try:
            meant = parse(message.text)
        except BeigeError as error:
            await self.say(str(error), "error")
            return
        if isinstance(meant, Prompt):
            await self._prompt(meant.text)
        elif meant is not None:
            self.do(self._desk.run(meant))

    async def _prompt(self, text: str) -> None:
        if not self.status.session or self.status.opening:
            await self.say("no session is open yet; Up brings the prompt back", "error")
        else:
            self.turns.send(text)

    async def action_cancel(self) -> None:
        if self.turns.running:
            self.do(self._cancel())

    async def _cancel(self) -> None:
        if text := await self.turns.cancel():
            await self.say(text)

    def action_interrupt(self) -> None:
        """Ctrl-C copies what is selected; else the second one in a row leaves."""
        if self.screen.get_selected_text() or (self.focused is self.editor and self.editor.selected_text):
            self.editor.action_copy() if self.editor.selected_text else self.screen.action_copy_text()
        elif self._leaving:
            self.exit()
        else:
            self._leaving = True
            self.notify("Ctrl-C again leaves; a running turn goes on (Esc cancels it)", markup=False)

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and event.key != "ctrl+c":
            self._leaving = False
        await super().on_event(event)

    def action_scroll(self, pages: int) -> None:
        if pages < 0:
            self.transcript.scroll_page_up()
        else:
            self.transcript.scroll_page_down()

    def on_resize(self) -> None:
        self.show_status()

    # --- what is shown ------------------------------------------------------------------------------

    async def say(self, text: str, kind: str = "notice") -> None:
        await self.transcript.note(text, kind)

    def show_status(self) -> None:
        self.line.update(Content(self.status.line(max(self.size.width - 2, 1))))

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Beside the screen; what goes wrong is said."""
        self.run_worker(self._told(work), group="commands")

    async def _told(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (ApiError, Away, BeigeError) as error:
            await self.say(failure(error), "error")
        except Exception as error:  # an answer of an odd shape, say: it must not end the client
            await self.say(f"this client failed ({type(error).__name__}: {error})", "error")

    def _connection(self, state: str) -> None:
        self.status.connection = state
        self.show_status()

    async def _watch(self) -> None:
        """While no turn is followed, which notices by itself: is the gateway there?"""
        if self.turns.running or self.status.connection == "connecting":
            return
        before = self.status.connection
        try:
            await self.api.health()
            self._connection("connected")
        except (Away, ApiError) as error:
            self._connection("offline")
            if before == "connected":
                await self.say(f"the gateway is away: {failure(error)}", "error")
            return
        if before != "connected":
            await self.say("the gateway is there again")
