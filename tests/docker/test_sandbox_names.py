"""A plugin may provide a tool that is called like a program of the system."""

from __future__ import annotations

import json
from typing import Any

import pytest

from beige.messages.sandbox import ExecRequest, ReadRequest, WriteRequest

pytestmark = pytest.mark.docker
NAMES = ("cat", "sh", "head", "mv", "bash")


def test_a_tool_named_like_a_system_program_does_not_replace_it_for_us(
    make_house: Any, sandbox_image: str
) -> None:
    """Only the agent's own commands find the launcher; read, write and exec use the system's."""
    from tests.docker.conftest import agent

    with make_house({"travel": agent(sandbox_image)}) as house:
        house.stop("sandbox")
        house.stop("policy")
        shadow(house.home, NAMES)
        house.start("policy")
        house.start("sandbox")

        async def use(bus: Any) -> None:
            await bus.call("sandbox.write", WriteRequest(path="a.txt", content=b"mine"), agent="travel")
            read = await bus.call("sandbox.read", ReadRequest(path="a.txt"), agent="travel")
            assert read.content == b"mine"
            which = await bus.call("sandbox.exec", ExecRequest(command="command -v cat"), agent="travel")
            assert which.stdout == b"/tools/bin/cat\n", "the control: the launcher is there and first"

        house.operate(use)


def shadow(home: Any, names: tuple[str, ...]) -> None:
    """Give travel a plugin for each name."""
    config = json.loads(home.config.read_text())
    for name in names:
        directory = home.root / "plugins" / name
        directory.mkdir(parents=True)
        manifest = {"name": name, "description": "Shadows.", "provides": {"tools": [name]}}
        (directory / "plugin.json").write_text(json.dumps(manifest))
        (directory / "plugin.py").write_text("")
        config["plugins"][name] = {"path": f"./plugins/{name}"}
    config["agents"]["travel"]["tools"] = list(names)
    home.config.write_text(json.dumps(config))
