"""A house with real containers: broker, policy, audit and sandbox as processes, an operator on the bus."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from beige.bus import Bus
from beige.messages.sandbox import ExecRequest, ExecResult
from beige.paths import Home
from beige.testing import House, short_home
from services.sandbox import image
from services.sandbox.spec import container_name, home_digest

FOREIGN = f"beige-test-foreign:{os.getpid()}"
CANARY = "sk-canary-of-the-host"


def docker(*arguments: str, check: bool = True, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=120, input=stdin, check=False
    )
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def sandbox_image() -> str:
    """The image, up to date (a fifth of a second when it is there)."""
    code = image.main(["build"])
    if code == 3:
        pytest.skip("no Docker engine answers")
    assert code == 0
    return image.DEFAULT_TAG


@pytest.fixture(scope="session")
def open_image(sandbox_image: str) -> str:
    """The image of the profile open; about half a minute where it is not there."""
    assert image.main(["build", "--profile", "open"]) == 0
    return image.TAGS["open"]


@pytest.fixture(scope="session")
def foreign_image(sandbox_image: str) -> Iterator[str]:
    """An image that is not ours: without /beige/init."""
    recipe = f"FROM {sandbox_image}\nUSER 0\nRUN rm -f /beige/init\nUSER 64000\n"
    docker("build", "--quiet", "--tag", FOREIGN, "-", stdin=recipe)
    yield FOREIGN
    docker("rmi", "--force", FOREIGN, check=False)


def agent(image_name: str, **sandbox: Any) -> dict[str, Any]:
    return {
        "model": {"provider": "demo", "model": "m"},
        "tools": ["kv"],
        "sandbox": {"image": image_name, **sandbox},
    }


def write_config(home: Home, agents: dict[str, Any]) -> None:
    config = {
        "llm": {"providers": {"demo": {"api": "scripted", "script": "script.json5"}}},
        "plugins": {"kv": {"path": "bundled:kv", "config": {}}},
        "agents": agents,
    }
    home.config.write_text(json.dumps(config))
    (home.root / "script.json5").write_text("[]")


class Sandboxed(House):
    """The processes an exec needs, and what tests want to know about the containers behind them."""

    def up(self) -> Sandboxed:
        for name in ("broker", "policy", "audit", "sandbox"):
            self.start(name)
        return self

    def operate(self, test: Callable[[Bus], Awaitable[None]]) -> None:
        """Run a coroutine function with the operator's bus; left-over tasks fail the test."""

        async def main() -> None:
            async with Bus(self.home, "cli/0") as bus, asyncio.timeout(120):
                await test(bus)
            left = [t.get_name() for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            assert left == []

        asyncio.run(main())

    def containers(self) -> list[str]:
        """Names of this home's containers, running or not."""
        label = f"label=beige.home={home_digest(self.home)}"
        return docker("ps", "--all", "--filter", label, "--format", "{{.Names}}").split()

    def container(self, name: str) -> str:
        return container_name(self.home, name)

    def remove_containers(self) -> None:
        for name in self.containers():
            docker("rm", "--force", name, check=False)


@contextlib.contextmanager
def home_at(root: Path | None) -> Iterator[Home]:
    if root is None:
        with short_home() as home:
            yield home
        return
    home = Home(root)
    home.create()
    yield home
    shutil.rmtree(home.run)


@pytest.fixture(scope="session")
def make_house() -> Callable[..., Any]:
    @contextlib.contextmanager
    def make(agents: dict[str, Any], root: Path | None = None, **variables: str) -> Iterator[Sandboxed]:
        with home_at(root) as home:
            write_config(home, agents)
            house = Sandboxed(home, {"ANTHROPIC_API_KEY": CANARY, **variables})
            try:
                with house.up():
                    yield house
                assert house.containers() == [], "an orderly end left containers"
            finally:
                house.remove_containers()

    return make


@pytest.fixture(scope="module")
def house(make_house: Any, sandbox_image: str) -> Iterator[Sandboxed]:
    """Agents `travel` and `other`, and `wide`, which may print more."""
    agents = {name: agent(sandbox_image) for name in ("travel", "other")}
    with make_house(agents | {"wide": agent(sandbox_image, outputLimit=2**20)}) as made:
        yield made


async def bash(bus: Bus, command: str, name: str = "travel", **fields: Any) -> ExecResult:
    result: ExecResult = await bus.call("sandbox.exec", ExecRequest(command, **fields), agent=name)
    return result


async def out(bus: Bus, command: str, name: str = "travel") -> str:
    """Output of a command that succeeds."""
    result = await bash(bus, command, name)
    assert result.exit_code == 0, result
    return result.stdout.decode()


@pytest.fixture(scope="session")
def tools() -> Any:
    """`bash`, `out`, `docker`, `agent`, `write_config` for tests, which cannot import a conftest."""

    class Tools:
        FOREIGN, CANARY = FOREIGN, CANARY

    for function in (bash, out, docker, agent, write_config):
        setattr(Tools, function.__name__, staticmethod(function))
    return Tools
