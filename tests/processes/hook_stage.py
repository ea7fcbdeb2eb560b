"""A house whose agents have hooks, with plugins that do what the text says and write down what they heard."""

import contextlib
import hashlib
import json
import time

from beige.errors import Failed
from beige.testing import House, short_home
from tests.processes.llm_stage import Stage
from tests.simulator.server import Simulator

SOURCE = """
import json, os, pathlib, time
from beige.plugins import Refuse, Replace

class Plugin:
    def __init__(self, ctx):
        self.name, self.data = ctx.name, ctx.data_dir

    def register(self, reg):
        reg.hook("prePrompt", self.before)
        reg.hook("postResponse", self.after)
        reg.hook("modelSwitched", lambda call: self.note(call))

    def note(self, call):
        names = ("hook", "agent", "session", "channel", "text", "model", "sender", "previous_model", "reason")
        said = {name: getattr(call, name) for name in names}
        with (self.data / "heard").open("a") as file:
            file.write(json.dumps(said) + "\\n")

    def before(self, call):
        self.note(call)
        what, _, rest = call.text.partition(" ")
        if what == "swap": return Replace(f"{rest} by {self.name}")
        if what == "refuse": return Refuse(f"{self.name} says no")
        if what == "raise": raise ValueError("secret at /home/op")
        if what == "exit": os._exit(7)
        if what == "hang": time.sleep(1000)
        while what == "wait" and not (self.data / "go").exists(): time.sleep(0.01)

    def after(self, call):
        self.note(call)
        while "linger" in call.text and not (self.data / "go").exists(): time.sleep(0.01)
        if "poison" in call.text: return Refuse("poison in it")
        if "secret" in call.text: return Replace(call.text.replace("secret", "[hidden]"))

def create_plugin(config, ctx): return Plugin(ctx)
"""
ALL = ["prePrompt", "postResponse", "modelSwitched"]
CLAUDE, GLM = ("anthropic", "claude-haiku-4-5"), ("zai", "glm-5")


def agent(*hooks, fallback=False):
    refs = [{"provider": provider, "model": model} for provider, model in (CLAUDE, GLM)]
    return {"model": refs[0], "fallbackModels": refs[1:] if fallback else [], "tools": [],
            "sandbox": {"image": "x"}, "hooks": list(hooks)}  # fmt: skip


def hook(plugin, *on, **more):
    return {"plugin": plugin, "on": list(on), **more}


AGENTS = {
    "plain": agent(),
    "asked": agent(hook("ears", "prePrompt", timeoutS=60)),
    "both": agent(hook("ears", "prePrompt", "postResponse", timeoutS=60)),
    "chain": agent(hook("tail", "prePrompt"), hook("ears", "prePrompt")),
    "lax": agent(hook("ears", "prePrompt", onFailure="continue")),
    "hurried": agent(hook("ears", "prePrompt", timeoutS=0.5)),
    "hurried-lax": agent(hook("ears", "prePrompt", timeoutS=0.5, onFailure="continue")),
    "watched": agent(hook("ears", "prePrompt", "postResponse", observe=True)),
    "guarded": agent(hook("guard", "prePrompt", "postResponse")),
    "masked": agent(hook("guard", "prePrompt", "postResponse"))
    | {"pluginConfigs": {"guard": {"action": "mask"}}},
    "pair": agent(hook("ears", "modelSwitched"), fallback=True),
}


def config(url, agents):
    providers = {
        "anthropic": {"apiKey": "${ANTHROPIC_API_KEY}", "baseUrl": url},
        "zai": {"api": "openai-completions", "apiKey": "${ZAI_API_KEY}", "baseUrl": f"{url}/v1"},
    }
    return {
        "llm": {"providers": providers},
        "plugins": {name: {"path": f"plugins/{name}"} for name in ("ears", "tail")}
        | {"guard": {"path": "bundled:guard", "config": {"words": ["zebra"]}}},
        "agents": agents,
        "gateway": {"port": 0},
    }


class HookStage(Stage):
    """What `Stage` has, and what the plugins heard."""

    def start(self, *names):
        for name in names or ("broker", "policy", "audit", "sandbox", "tools", "llm", "gateway"):
            if name in ("tools", "gateway"):
                self.house.start(name)
            else:
                super().start(name)

    def file(self, name, plugin="ears"):
        return self.home.data / "plugins" / plugin / name

    def heard(self, agent, plugin="ears", hook=""):
        path = self.file("heard", plugin)
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["agent"] == agent and hook in ("", line["hook"])]

    def hooks_of(self, agent, session):
        return [entry for entry in self.session(agent, session) if entry["type"] == "hook"]

    def records(self, session, phase="finished"):
        lines = [line for line in self.audit() if line["type"] == "hook" and line["phase"] == phase]
        return [line for line in lines if line.get("session") == session]

    def said_to_models(self):
        """All that ever reached a provider."""
        return json.dumps([request.body for request in self.simulator.requests])


@contextlib.contextmanager
def new_hook_stage(agents=None):
    with Simulator() as simulator, short_home() as home:
        home.config.write_text(json.dumps(config(simulator.url, agents or AGENTS)))
        for name in ("ears", "tail"):
            directory = home.root / "plugins" / name
            directory.mkdir(parents=True)
            manifest = {"name": name, "description": "for tests", "provides": {"hooks": ALL}}
            (directory / "plugin.json").write_text(json.dumps(manifest))
            (directory / "plugin.py").write_text(SOURCE)
        with House(home) as house:
            yield HookStage(house, simulator)


def until(condition):
    end = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return found


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def of_user(request):
    """The texts of the user's messages in a request to Anthropic."""
    contents = [message["content"] for message in request.body["messages"] if message["role"] == "user"]
    return [content if isinstance(content, str) else content[0].get("text") for content in contents]


def awake(stage):
    """The plugin's process is there, and a session goes on after what failed in it."""

    def asked():
        with contextlib.suppress(Failed):
            return stage.prompt("asked", "hello", "awake")

    until(asked)
