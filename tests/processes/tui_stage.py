"""The terminal UI, driven key by key, against a real gateway with everything behind it."""

import asyncio
import contextlib
import json

from beige.testing import House, short_home
from beige.tui.api import Api
from beige.tui.app import BeigeApp
from tests.processes.gateway_stage import SCRIPT, SLOW, Stage
from tests.processes.llm_stage import KEYS
from tests.simulator.server import Simulator

DEADLINE_S = 90
CLAUDE, GLM = "anthropic/claude-haiku-4-5", "zai/glm-5"


def config(url):
    def agent(*models, **more):
        refs = [{"provider": provider, "model": model} for provider, model in models]
        return {"model": refs[0], "fallbackModels": refs[1:], "tools": [], "sandbox": {"image": "x"}} | more

    providers = {name: {"api": "scripted", "script": f"{name}.json5"} for name in ("quick", "slow")}
    providers["anthropic"] = {"apiKey": "${ANTHROPIC_API_KEY}", "baseUrl": url}
    providers["zai"] = {"api": "openai-completions", "apiKey": "${ZAI_API_KEY}", "baseUrl": f"{url}/v1"}
    agents = {
        "pair": agent(("anthropic", "claude-haiku-4-5"), ("zai", "glm-5")),
        "travel": agent(("quick", "m")),
        "slow": agent(("slow", "m")),
    }
    return {"llm": {"providers": providers}, "agents": agents, "gateway": {"port": 0}}


class TuiStage(Stage):
    """A house with a gateway, and a simulator of two providers."""

    def __init__(self, house, simulator):
        super().__init__(house)
        self.simulator = simulator

    def start(self, names=("broker", "policy", "audit", "sandbox", "llm", "gateway")):
        for name in names:
            if name == "llm":
                self.house.start("llm", env=KEYS)
            else:
                super().start([name])

    def settings(self):
        path = self.home.sessions / "session-settings.json"
        return json.loads(path.read_text())["sessions"] if path.exists() else {}


@contextlib.contextmanager
def new_tui_stage():
    with Simulator() as simulator, short_home() as home:
        home.config.write_text(json.dumps(config(simulator.url)))
        (home.root / "quick.json5").write_text(SCRIPT)
        (home.root / "slow.json5").write_text(SLOW)
        with House(home) as house:
            stage = TuiStage(house, simulator)
            stage.start()
            yield stage


class User:
    """Somebody at the terminal."""

    def __init__(self, app, pilot):
        self.app, self.pilot = app, pilot

    @property
    def screen(self):
        """What is to be seen now."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)

    @property
    def words(self):
        """The same without its layout."""
        return " ".join(self.screen.split())

    async def until(self, condition, what):
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not (found := condition()):
                    await self.pilot.pause(0.02)
                return found
        except TimeoutError:
            raise AssertionError(f"not within {DEADLINE_S} s: {what}; there is:\n{self.screen}") from None

    async def sees(self, text):
        await self.until(lambda: text in self.words, text)

    async def sees_not(self, text):
        await self.until(lambda: text not in self.words, f"no {text}")

    async def ready(self):
        """A session is open, and nothing runs."""
        await self.until(
            lambda: self.app.status.session and not self.app.turns.running and "ready" in self.words, "ready"
        )

    async def says(self, text):
        """Typed as a paste is, then sent with Enter."""
        self.app.editor.insert(text)
        await self.pilot.press("enter")

    async def press(self, *keys):
        await self.pilot.press(*keys)


def at_the_terminal(stage, steps, agent="travel", session="", size=(100, 40), token=None, url=None):
    """Run `steps(user)` with the client; its exit code."""

    async def run():
        where = url or stage.url
        app = BeigeApp(Api(where, token or stage.token), where, agent, session)
        async with app.run_test(size=size, notifications=True) as pilot:
            await steps(User(app, pilot))
        return app

    return asyncio.run(run())
