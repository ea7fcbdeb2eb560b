"""A house with channels: a scripted model, an executor, and a channel that does what the test says.

The channel `rig` listens on a Unix socket. A connection is one ask: a line of JSON in, a line per event and
one for the outcome back; hanging up cancels it.
"""

import contextlib
import json
import shutil
import socket
import threading
import time

from beige.testing import House, short_home
from tests.processes.llm_stage import Stage

MANIFEST = {"name": "rig", "description": "for tests", "provides": {"channels": ["rig", "rig-two"]}}
RIG = """
import asyncio, json, os, sys
import msgspec
from beige.errors import BeigeError
from beige.messages.session_settings import SessionSettings
from services.channels import frames

class Adapter:
    async def run(self, ctx):
        self.ctx = ctx
        if ctx.config.get("refuse"): raise RuntimeError(f"refused with {ctx.config['token']}")
        path = ctx.data_dir / "door.sock"
        path.unlink(missing_ok=True)
        async with await asyncio.start_unix_server(self.serve, path, limit=2**22) as server:
            await server.serve_forever()

    async def serve(self, reader, writer):
        ask = json.loads(await reader.readline())
        work = asyncio.create_task(self.work(ask, writer))
        hung_up = asyncio.create_task(reader.read())
        await asyncio.wait([work, hung_up], return_when="FIRST_COMPLETED")
        work.cancel()
        hung_up.cancel()
        await asyncio.gather(work, hung_up, return_exceptions=True)
        writer.close()

    async def work(self, ask, writer):
        def say(**line): writer.write(json.dumps(line).encode() + b"\\n")
        try:
            do = ask.pop("do")
            if do == "exit": os._exit(5)
            if do == "take":
                for number in range(200_000): self.ctx._ask.__self__.send(frames.Took(number % 200))
                told = {}
            elif do == "deaf":
                worker = self.ctx._ask.__self__
                worker._transport.pause_reading()
                for number in range(ask["count"]):
                    to, text = f"deaf-{number}", "x" * 200_000
                    worker.send(frames.AskPrompt(10_000 + number, to, "", text, "", False))
                    await asyncio.sleep(0.02)
                told = {}
            elif do == "raw":
                to = ask["conversation"]
                self.ctx._ask.__self__.send(frames.AskPrompt(99_999, to, "", "raw", "", False))
                told = {}
            elif do == "about":
                told = {"pid": os.getpid(), "config": self.ctx.config, "agents": self.ctx.agents,
                        "environ": dict(os.environ)}
            else:
                if do == "prompt": ask["on_event"] = lambda event: say(event=msgspec.to_builtins(event))
                if "set" in ask: ask["set"] = msgspec.convert(ask["set"], SessionSettings)
                told = await getattr(self.ctx, do)(**ask)
            say(told=msgspec.to_builtins(told))
        except BeigeError as error:
            say(error=error.code, message=error.message, executed=error.executed)
        await writer.drain()

class Rig:
    def register(self, reg):
        reg.channel("rig", Adapter())
        reg.channel("rig-two", Adapter())

def create_plugin(config, ctx): return Rig()
"""
SCRIPT = """{ scripts: [
  { name: "run", when: "^run", steps: [
    { say: "Running.", tool: "exec", args: { command: "echo hi # {{prompt}}" } },
    { say: "It printed {{last.stdout}}" },
  ] },
  { name: "long", when: "^long", steps: [
    { say: "Off.", tool: "exec", args: { command: "sleep 60 # {{prompt}}" } },
    { say: "Never said" },
  ] },
  { name: "echo", steps: [ECHO] },
] }""".replace("ECHO", ", ".join(['{ say: "You said: {{prompt}}" }'] * 30))


def config(channels=None, plugins=None):
    agent = {"model": {"provider": "script", "model": "m"}, "tools": [], "sandbox": {"image": "x"}}
    return {
        "llm": {"providers": {"script": {"api": "scripted", "script": "script.json5"}}},
        "plugins": {
            name: {"path": path} for name, path in ({"rig": "plugins/rig"} | (plugins or {})).items()
        },
        "agents": {name: agent for name in ("travel", "home", "other")},
        "channels": channels
        or {
            "rig": {"agents": ["travel", "home"], "config": {"token": "${RIG_TOKEN}"}},
            "two": {"adapter": "rig-two", "agents": ["home"], "defaults": {"verbose": True}},
        },
    }


class ChannelStage(Stage):
    """`Stage`, and the asks of its channels."""

    def start(self, *names):
        super().start(*(names or ("broker", "policy", "audit", "sandbox", "llm", "channels")))

    def clean(self):
        for directory in (self.home.sessions, self.work):
            shutil.rmtree(directory)
            directory.mkdir(mode=0o700)

    def connect(self, channel="rig"):
        """Waits for the channel to listen."""
        path, end = self.home.data / "channels" / channel / "door.sock", time.monotonic() + 60
        while True:
            door = socket.socket(socket.AF_UNIX)
            door.settimeout(60)
            try:
                door.connect(str(path))
                return door
            except OSError:
                door.close()
                assert time.monotonic() < end, self.house.log("channels")[-4000:]
                time.sleep(0.02)

    @contextlib.contextmanager
    def asking(self, do, channel="rig", **fields):
        """An iterator over what the channel tells, line by line."""
        with self.connect(channel) as door, door.makefile("rb") as lines:
            door.sendall(json.dumps({"do": do, **fields}).encode() + b"\n")
            yield (json.loads(line) for line in lines)

    def ask(self, do, channel="rig", **fields):
        """The outcome: what was told, or the error's line. And, of a prompt, the events before it."""
        with self.asking(do, channel, **fields) as lines:
            *events, last = lines
        return (
            (last.get("told", last), [line["event"] for line in events]) if events else last.get("told", last)
        )

    def ask_and_die(self, do="exit", channel="rig", **fields):
        """The channel's process ends over it, before or after it told so."""
        with self.asking(do, channel, **fields) as lines, contextlib.suppress(ConnectionResetError):
            list(lines)

    def say(self, text, conversation="c1", channel="rig", **fields):
        """A prompt's outcome and its events."""
        told = self.ask("prompt", channel, conversation=conversation, text=text, **fields)
        return told if isinstance(told, tuple) else (told, [])


def furnish(home, channels=None, plugins=None):
    home.config.write_text(json.dumps(config(channels, plugins)))
    (home.root / "script.json5").write_text(SCRIPT)
    directory = home.root / "plugins" / "rig"
    directory.mkdir(parents=True)
    (directory / "plugin.json").write_text(json.dumps(MANIFEST))
    (directory / "plugin.py").write_text(RIG)


@contextlib.contextmanager
def new_channel_stage(channels=None, environment=None, plugins=None):
    with short_home() as home:
        furnish(home, channels, plugins)
        with House(home, {"RIG_TOKEN": "rig-secret", **(environment or {})}) as house:
            yield ChannelStage(house, None)


def wait_until(condition):
    poll = threading.Event()
    for _ in range(3000):
        if condition():
            return
        poll.wait(0.02)
    raise AssertionError("it never came true")
