"""What the attacks run against: one whole gateway, and one container a careless operator would start.

`gateway`: supervisord with every process of beige and a real container per agent. `careless`: the same
image, started without a wall and given all that beige withholds; a probe that finds nothing there
couldn't find anything in the sandbox either. It sits on a network that leads nowhere but to this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from beige.bus import Bus
from beige.messages.base import AgentRef
from beige.messages.sandbox import ExecRequest, ExecResult
from beige.paths import Home
from beige.supervisor import leftovers, lifecycle
from beige.testing import short_home
from services.sandbox.spec import container_name, home_digest

IMAGE = "beige-sandbox:latest"
PROVIDER_KEY = f"sk-canary-{secrets.token_hex(12)}"
PLUGIN_SECRET = f"plugin-canary-{secrets.token_hex(12)}"
HOST_CANARY = f"host-canary-{secrets.token_hex(12)}"
"""Also the name of the file it is in."""

CONFIG = """{
  llm: { providers: {
    anthropic: { apiKey: "${ATTACK_PROVIDER_KEY}" },
    script: { api: "scripted", script: "script.json5" },
  } },
  plugins: {
    kv: { path: "bundled:kv" },
    notes: { path: "plugins/notes", config: { secret: "${ATTACK_PLUGIN_SECRET}" } },
  },
  agents: {
    travel: { model: { provider: "script", model: "m" }, tools: ["kv"], sandbox: { image: "IMAGE" } },
    other: { model: { provider: "script", model: "m" }, tools: ["kv", "notes"], sandbox: { image: "IMAGE" } },
    idle: { model: { provider: "script", model: "m" }, tools: [], sandbox: { image: "IMAGE" } },
  },
}
""".replace("IMAGE", IMAGE)
SCRIPT = '[{ say: "Looking.", tool: "exec", args: { command: "env; kv list" } }, { say: "Done." }]'
NOTES_MANIFEST = {"name": "notes", "description": "for tests", "provides": {"tools": ["notes"]}}
NOTES = '''
class Notes:
    """Writes down each call that reached it."""
    def __init__(self, file): self.file = file
    def register(self, reg): reg.tool("notes", self.call)
    def call(self, call):
        with self.file.open("a") as file:
            file.write(f"{call.agent} {' '.join(call.args)}\\n")
        return "noted"
def create_plugin(config, ctx):
    assert config["secret"]
    return Notes(ctx.data_dir / "calls")
'''

SPEAK = """
import json, os, socket, sys
lines = json.load(sys.stdin)
token = os.environ.get("BEIGE_CALL_TOKEN", "")
with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(30)
    s.connect("/beige/gateway.sock")
    answers = s.makefile("rb")
    for line in lines:
        s.sendall(line.replace("@TOKEN@", token).encode("utf-8", "surrogateescape") + b"\\n")
        sys.stdout.write(answers.readline().decode())
"""
"""Speaks raw lines to the gateway's socket, as any program inside may; prints the answers."""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def docker(*arguments: str, stdin: str = "", check: bool = True) -> Ran:
    done = subprocess.run(
        ["docker", *arguments], input=stdin, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 or not check, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


class Inside:
    """One agent's container, used as whatever runs in it could."""

    def __init__(self, gateway: Gateway, agent: str) -> None:
        self._gateway, self.agent = gateway, agent

    def run(self, *argv: str, stdin: str = "", session: str = "", channel: str = "") -> Ran:
        body = ExecRequest(argv=list(argv), stdin=stdin.encode())
        done: ExecResult = self._gateway.call(
            "sandbox.exec", body, agent=self.agent, session=session, channel=channel, ttl_s=90
        )
        return Ran(done.exit_code, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def sh(self, command: str, **more: str) -> Ran:
        return self.run("bash", "-c", command, **more)

    def out(self, command: str, **more: str) -> str:
        """Output of a command that succeeds."""
        ran = self.sh(command, **more)
        assert ran.code == 0, ran
        return ran.out.strip()

    def python(self, code: str) -> Ran:
        return self.run("python3", "-", stdin=code)

    def speak(self, *lines: str | dict[str, Any], **more: str) -> list[dict[str, Any]]:
        """One answer per line. `@TOKEN@` stands for the command's call token."""
        text = json.dumps([line if isinstance(line, str) else json.dumps(line) for line in lines])
        ran = self.run("python3", "-c", SPEAK, stdin=text, **more)
        assert ran.code == 0, ran
        return [json.loads(answer) for answer in ran.out.split("\n")[:-1]]

    def tool(
        self, name: str, *args: str, claims: dict[str, Any] | None = None, **more: str
    ) -> dict[str, Any]:
        request = {"type": "tool_request", "tool": name, "args": list(args), **(claims or {})}
        return self.speak(request, **more)[0]


class Gateway:
    """A running house and its operator."""

    provider_key, plugin_secret, host_canary = PROVIDER_KEY, PLUGIN_SECRET, HOST_CANARY

    def __init__(self, home: Home, canary_file: Path) -> None:
        self.home, self.canary_file = home, canary_file
        self.travel, self.other, self.idle = (Inside(self, name) for name in ("travel", "other", "idle"))

    def operate(self, work: Callable[[Bus], Awaitable[Any]]) -> Any:
        """Run a coroutine function with the operator's bus."""

        async def main() -> Any:
            async with Bus(self.home, "cli/0") as bus, asyncio.timeout(120):
                return await work(bus)

        return asyncio.run(main())

    def call(self, method: str, body: Any, **more: Any) -> Any:
        return self.operate(lambda bus: bus.call(method, body, **more))

    def container(self, agent: str) -> str:
        return container_name(self.home, agent)

    def inspect(self, agent: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(docker("inspect", self.container(agent)).out)[0]
        return found

    def containers(self) -> list[str]:
        label = f"label=beige.home={home_digest(self.home)}"
        return docker("ps", "--all", "--filter", label, "--format", "{{.Names}}").out.split()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[dict[str, Any]]]:
        """Holds, afterwards, the audit records written meanwhile. A call's answer comes after its record."""
        before = self.home.audit_log.stat().st_size if self.home.audit_log.exists() else 0
        records: list[dict[str, Any]] = []
        yield records
        with self.home.audit_log.open("rb") as log:
            log.seek(before)
            records.extend(json.loads(line) for line in log)


def furnish(home: Home) -> None:
    home.config.write_text(CONFIG)
    (home.root / "script.json5").write_text(SCRIPT)
    notes = home.root / "plugins" / "notes"
    notes.mkdir(parents=True)
    (notes / "plugin.json").write_text(json.dumps(NOTES_MANIFEST))
    (notes / "plugin.py").write_text(NOTES)


@contextlib.contextmanager
def host_file() -> Iterator[Path]:
    """A file of the host, outside of beige's home, that its permissions keep nobody away from."""
    with tempfile.TemporaryDirectory(prefix="bga-host-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        path = Path(name) / HOST_CANARY
        path.write_text(f"{HOST_CANARY}\n")
        path.chmod(0o666)
        yield path


@contextlib.contextmanager
def whole_gateway() -> Iterator[Gateway]:
    """Everything up, with a container per agent; afterwards, nothing is left of it."""
    environ = {**os.environ, "ATTACK_PROVIDER_KEY": PROVIDER_KEY, "ATTACK_PLUGIN_SECRET": PLUGIN_SECRET}
    with short_home("bga-") as home, host_file() as canary:
        furnish(home)
        running = Gateway(home, canary)
        try:
            lifecycle.up(home, environ, lambda _: None)
            for agent in ("travel", "other", "idle"):
                running.call("sandbox.ensure", AgentRef(), agent=agent, ttl_s=60)
            yield running
        finally:
            lifecycle.down(home)
            left = running.containers()
            for name in left:
                docker("rm", "--force", name, check=False)
        assert left == [], "an orderly end left containers"
        assert leftovers.processes(home) == []


class Careless:
    """A container with root, all system calls, the host's files, a Docker socket, keys in its
    environment, launchers it may change, and a network."""

    def __init__(self, gateway: Gateway, directory: Path, network: str, engine: Path) -> None:
        self.directory = directory
        root = gateway.home.root
        self.host_address = docker(
            "network", "inspect", network, "--format", "{{(index .IPAM.Config 0).Gateway}}"
        ).out.strip()
        self.container = docker(
            "run", "--detach", "--label=beige.test=attacks", f"--network={network}", "--user=0",
            "--security-opt=seccomp=unconfined", "--cap-add=SYS_ADMIN", "--ulimit=core=-1",
            f"--env=ATTACK_PROVIDER_KEY={PROVIDER_KEY}", f"--env=ATTACK_PLUGIN_SECRET={PLUGIN_SECRET}",
            f"--volume={root}:{root}", f"--volume={gateway.canary_file.parent}:{gateway.canary_file.parent}",
            f"--volume={directory}/bin:/tools/bin",
            f"--volume={directory}/packages:/tools/packages", f"--volume={engine}:/var/run/docker.sock",
            IMAGE, "sleep", "infinity",
        ).out.strip()  # fmt: skip

    def run(self, *argv: str, stdin: str = "", user: str = "0") -> Ran:
        return docker("exec", "-i", f"--user={user}", self.container, *argv, stdin=stdin, check=False)

    def sh(self, command: str, user: str = "0") -> Ran:
        return self.run("bash", "-c", command, user=user)

    def python(self, code: str) -> Ran:
        return self.run("python3", "-", stdin=code)

    def inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(docker("inspect", self.container).out)[0]
        return found


class Ping(socketserver.StreamRequestHandler):
    """Answers as a Docker engine would; there is nothing behind it."""

    def handle(self) -> None:
        self.rfile.readline(1024)
        self.wfile.write(b"HTTP/1.0 200 OK\r\nApi-Version: 1.41\r\n\r\nOK")


@contextlib.contextmanager
def engine_socket(path: Path) -> Iterator[Path]:
    with socketserver.ThreadingUnixStreamServer(str(path), Ping) as server:
        path.chmod(0o666)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield path
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def careless_container(gateway: Gateway) -> Iterator[Careless]:
    network = f"beige-test-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        directory = gateway.home.root / "careless"
        for source, name in ((gateway.home.launchers, "bin"), (gateway.home.packages, "packages")):
            shutil.copytree(source("travel"), directory / name)
        engine = stack.enter_context(engine_socket(directory / "engine.sock"))
        docker("network", "create", "--internal", "--label=beige.test=attacks", network)
        stack.callback(docker, "network", "rm", network)
        made = Careless(gateway, directory, network, engine)
        stack.callback(docker, "rm", "--force", made.container)
        yield made


# --- one of each for all attacks, and gone when the last one is over: other tests come after --------------

RUNNING = contextlib.ExitStack()
STARTED: dict[str, Any] = {}


def started(name: str, make: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
    if name not in STARTED:
        STARTED[name] = RUNNING.enter_context(make())
    return STARTED[name]


def end_all() -> None:
    STARTED.clear()
    RUNNING.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        end_all()


def pytest_sessionfinish() -> None:
    end_all()


@pytest.fixture(scope="module")
def gateway(docker_ready: None) -> Gateway:
    running: Gateway = started("gateway", whole_gateway)
    return running


@pytest.fixture(scope="module")
def careless(gateway: Gateway) -> Careless:
    """What the walls are measured against."""
    made: Careless = started("careless", lambda: careless_container(gateway))
    return made
