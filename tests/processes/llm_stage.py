"""Everything a prompt needs, as real processes over a real bus, with the provider simulator."""

import asyncio
import contextlib
import json
import shutil
import sys
import time
from pathlib import Path

from beige.bus import Bus
from beige.messages.llm import PromptRequest
from beige.testing import House, short_home
from tests.simulator.server import Simulator

EXECUTOR = Path(__file__).with_name("llm_executor.py")
KEYS = {"ANTHROPIC_API_KEY": "sk-ant-0123456789abcdef", "ZAI_API_KEY": "sk-zai-0123456789abcdef"}


class Stage:
    """Everything a prompt needs, as processes; a simulator; and what the executor did."""

    def __init__(self, house, simulator):
        self.house, self.home, self.simulator = house, house.home, simulator
        self.work = self.home.root / "work"

    def start(self, *names):
        for name in names or ("broker", "policy", "audit", "sandbox", "llm"):
            if name == "sandbox":
                self.work.mkdir(exist_ok=True)
                self.house.start("sandbox", sys.executable, "-P", str(EXECUTOR), str(self.work))
            else:
                self.house.start(name, env=KEYS if name.startswith("llm") else None)

    def effects(self):
        path = self.work / "effects"
        return path.read_text().splitlines() if path.exists() else []

    def session(self, agent, session):
        path = self.home.sessions / agent / f"{session}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def audit(self):
        return [json.loads(line) for line in self.home.audit_log.read_text().splitlines()]

    def clean(self):
        """No session, no file, no recorded request."""
        self.simulator.reset()
        for directory in (self.home.sessions, self.work):
            shutil.rmtree(directory)
            directory.mkdir(mode=0o700)

    def wait_for_effect(self, effect):
        end = time.monotonic() + 60
        while effect not in self.effects():
            assert time.monotonic() < end, f"never came: {effect}"
            time.sleep(0.02)

    def run(self, steps):
        """Run `steps(cli)` with an operator's bus."""

        async def inner():
            async with Bus(self.home, "cli/0") as cli:
                return await steps(cli)

        return asyncio.run(inner())

    def prompt(self, agent, text, session="s1"):
        return self.run(lambda cli: prompt(cli, agent, text, session))


def two_agents(url):
    agent = {"tools": [], "sandbox": {"image": "x"}}
    models = {"claude": ("anthropic", "claude-haiku-4-5"), "glm": ("zai", "glm-5")}
    return {
        "llm": {
            "providers": {
                "anthropic": {"apiKey": "${ANTHROPIC_API_KEY}", "baseUrl": url, "timeoutS": 30},
                "zai": {"api": "openai-completions", "apiKey": "${ZAI_API_KEY}", "baseUrl": f"{url}/v1"},
            }
        },
        "agents": {
            name: {**agent, "model": {"provider": provider, "model": model}}
            for name, (provider, model) in models.items()
        },
    }


@contextlib.contextmanager
def new_session_stage(default=None):
    with Simulator(default) as simulator, short_home() as home:
        home.config.write_text(json.dumps(two_agents(simulator.url)))
        with House(home) as house:
            yield Stage(house, simulator)


async def prompt(cli, agent, text, session="s1", seen=None):
    """The result and every event of one prompt. `seen` is called with each event as it comes."""
    events = []
    body = PromptRequest(text=text)
    async with cli.open("llm.prompt", body, agent=agent, session=session, channel="test", ttl_s=60) as stream:
        async for event in stream:
            events.append(event)
            if seen is not None:
                seen(event)
        return await stream.result(), events


def texts(events, kind="text_delta"):
    return "".join(event.text for event in events if event.kind == kind)
