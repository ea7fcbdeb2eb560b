"""A listener on a real socket, with a relay of our own: how it comes, is replaced, and goes."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
import uvloop

from beige.errors import ConfigError
from beige.paths import Home
from socket_bridge.desk import Desk
from socket_bridge.hangup import HangupWatch
from socket_bridge.listener import Listener, bind
from tests.unit.bridge.bridge_stage import Bridge, Executor, run, until


def test_the_socket_and_its_directory_have_the_modes_a_container_needs(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        path = home.gateway_socket("a")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o711
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700
        assert home.socket_link("a").resolve() == path.resolve()

    run(home, test)
    assert not home.gateway_socket("a").exists()
    assert home.gateway_socket("a").parent.is_dir()


def test_a_socket_left_behind_is_replaced_in_the_same_directory(home: Home) -> None:
    path = home.gateway_socket("a")
    path.parent.mkdir(mode=0o711)
    directory = path.parent.stat().st_ino
    bind(path).close()
    (path.parent / ".gw.new").touch()
    home.socket_link("a").symlink_to("/nowhere")

    async def test(bridge: Bridge) -> None:
        client = await bridge.client()
        assert (await client.ask("echo", "hi"))["success"]
        assert path.parent.stat().st_ino == directory
        assert home.socket_link("a").resolve() == path.resolve()
        await client.close()

    run(home, test)


def test_a_listener_does_not_remove_its_successors_socket(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        bind(home.gateway_socket("a")).close()

    run(home, test)
    assert home.gateway_socket("a").exists()


def test_a_directory_that_is_a_link_is_refused(home: Home, tmp_path: Path) -> None:
    home.agent_sockets("a").symlink_to(tmp_path)

    async def main() -> None:
        hangups = HangupWatch(asyncio.get_running_loop())
        try:
            with pytest.raises(ConfigError, match="not a directory of this user"):
                await Listener(home, Desk("a", Executor()), hangups).open()
        finally:
            hangups.close()

    uvloop.run(main())
    assert list(tmp_path.iterdir()) == []


def test_closing_lets_a_running_call_finish_and_takes_no_other(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        client = await bridge.client()
        client.send(("hold", "last"), ("echo", "never"))
        await until(lambda: bridge.executor.running == 1)
        closing = asyncio.create_task(bridge.listeners[0].close())
        await asyncio.sleep(0)
        bridge.executor.gate.set()
        assert (await client.answer())["output"] == "last"
        assert await client.reader.read() == b""
        await closing
        with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
            await bridge.client()
        await client.close()

    run(home, test)


def test_closing_cancels_a_call_that_does_not_end(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        client = await bridge.client()
        client.send(("hold",))
        await until(lambda: bridge.executor.running == 1)
        await bridge.listeners[0].close()
        assert bridge.executor.cancelled == 1
        await client.close()

    run(home, test)
