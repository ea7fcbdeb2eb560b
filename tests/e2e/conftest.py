"""A supervised house, as `beige up` starts it."""

import json
import os

import pytest

from beige.supervisor import lifecycle
from beige.supervisor.control import Control
from beige.testing import short_home

MARK_PLUGIN = '''
"""A tool whose effect can be counted: appends its argument to a file."""

import asyncio
import os
import random


def create_plugin(config, ctx):
    return Mark(ctx)


class Mark:
    def __init__(self, ctx):
        self._file = os.open(ctx.data_dir / "marks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def register(self, reg):
        reg.tool("mark", self.call)

    async def call(self, call):
        os.write(self._file, call.args[0].encode() + b"\\n")
        await asyncio.sleep(random.uniform(0, 0.02))
        return call.args[0]
'''
MANIFEST = {"name": "mark", "description": "Counts.", "commands": [], "provides": {"tools": ["mark"]}}
CONFIG = """{
  llm: { providers: { script: { api: "scripted", script: "script.json5" } } },
  plugins: { mark: { path: "./mark" }, kv: { path: "bundled:kv" } },
  agents: { travel: { model: { provider: "script", model: "m" }, tools: ["mark", "kv"],
                      sandbox: { image: "beige-sandbox:latest" } } },
}
"""


class Supervised:
    """A home in which everything runs under supervisord."""

    def __init__(self, home):
        self.home = home
        self.control = Control(home)

    def pid(self, program):
        return next(p.pid for p in self.control.processes() if p.program == program)

    def state(self, program):
        return next(p.state for p in self.control.processes() if p.program == program)

    def marks(self):
        path = self.home.data / "plugins" / "mark" / "marks"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def records(self):
        return [json.loads(line) for line in self.home.audit_log.read_text().splitlines()]


@pytest.fixture(scope="module")
def supervised(docker_ready):
    with short_home() as home:
        (home.root / "mark").mkdir()
        (home.root / "mark" / "plugin.json").write_text(json.dumps(MANIFEST))
        (home.root / "mark" / "plugin.py").write_text(MARK_PLUGIN)
        (home.root / "script.json5").write_text('[{ say: "hello" }]\n')
        home.config.write_text(CONFIG)
        lifecycle.up(home, os.environ, lambda text: None)
        try:
            yield Supervised(home)
        finally:
            lifecycle.down(home)
