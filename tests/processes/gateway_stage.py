"""The gateway over a real bus, with a real llm, policy and audit; and a client of its HTTP API."""

import contextlib
import json
import sys
import time
from pathlib import Path

import httpx

from beige import tokens
from beige.testing import House, short_home

EXECUTOR = Path(__file__).with_name("llm_executor.py")
SCRIPT = """[
  { say: "I write a file.", tool: "write", args: { path: "a.txt", content: "hello" } },
  { tool: "exec", args: { command: "cat a.txt" } },
  { say: "It says {{last.stdout}}." },
  { say: "You said: {{prompt}}" },
  { say: "And again: {{prompt}}" },
]"""
SLOW = """[
  { say: "This takes a while.", tool: "exec",
    args: { command: "echo waiting; until [ -e go ]; do sleep 0.05; done" } },
  { say: "Now it is done." },
]"""


IMAGE = "beige-sandbox:latest"
PROMPT = "/api/agents/{}/prompt"
CANARIES = ("sk-canary-in-the-file", "plugin-canary-in-the-file")
"""Secrets of the configuration."""


def config(**gateway):
    def agent(model):
        return {"model": {"provider": model, "model": "m"}, "tools": [], "sandbox": {"image": IMAGE}}

    providers = {name: {"api": "scripted", "script": f"{name}.json5"} for name in ("quick", "slow")}
    providers["secret"] = {
        "api": "anthropic-messages",
        "apiKey": CANARIES[0],
        "baseUrl": "http://x",
    }
    return {
        "llm": {"providers": providers},
        "plugins": {"kv": {"path": "bundled:kv", "config": {"anything": CANARIES[1]}}},
        "agents": {"travel": agent("quick"), "slow": agent("slow")},
        "gateway": {"port": 0, **gateway},
    }


class Stage:
    """A house with a gateway."""

    def __init__(self, house):
        self.house, self.home = house, house.home
        self.work = self.home.root / "work"

    def start(self, names=("broker", "policy", "audit", "sandbox", "llm", "gateway")):
        for name in names:
            if name == "sandbox":
                self.work.mkdir(exist_ok=True)
                self.house.start("sandbox", sys.executable, "-P", str(EXECUTOR), str(self.work))
            else:
                self.house.start(name)

    @property
    def url(self):
        return self.home.http_address.read_text().strip()

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])

    @property
    def token(self):
        return self.home.http_token.read_text().strip()

    def new_token(self, name, agents=("*",), scopes=tokens.SCOPES, expires=None):
        with contextlib.suppress(Exception):
            tokens.revoke(self.home, name)
        return tokens.create(self.home, name, agents, scopes, expires)

    def client(self, token=None, **more):
        headers = {"authorization": f"Bearer {token or self.token}"} | more.pop("headers", {})
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, **more)

    def wait_for_its_end(self, name):
        """The exit code of a process that ends by itself."""
        with self.house.processes.pop(name) as process:
            return process.wait(20)

    def go(self):
        """Let the slow agent's commands end."""
        (self.work / "slow").mkdir(exist_ok=True)
        (self.work / "slow" / "go").touch()


@contextlib.contextmanager
def new_stage(**gateway):
    with short_home() as home:
        home.config.write_text(json.dumps(config(**gateway)))
        (home.root / "quick.json5").write_text(SCRIPT)
        (home.root / "slow.json5").write_text(SLOW)
        with House(home) as house:
            yield Stage(house)


def events_of(response):
    """The events of an NDJSON answer."""
    return [json.loads(line) for line in response.iter_lines()]


def until(condition, what, deadline_s=60):
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.02)
    return found


def begin_slow(stage, client, session, **more):
    """A prompt whose command waits for `stage.go()`, its client gone after the first events."""
    body = {"text": "go", "session": session, "stream": True, **more}
    with client.stream("POST", PROMPT.format("slow"), json=body) as answer:
        seen = []
        for line in answer.iter_lines():
            seen.append(json.loads(line))
            if seen[-1]["kind"] == "tool_output":
                return seen
    raise AssertionError("the stream ended")
