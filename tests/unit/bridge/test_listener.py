"""A listener on a real socket, with a relay of our own: order, limits, fairness, disconnects, restarts."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from beige.errors import ConfigError, Denied
from beige.messages.tools import ToolResult
from beige.paths import Home
from beige.testing import short_home
from socket_bridge import desk as desks
from socket_bridge.desk import Desk
from socket_bridge.hangup import HangupWatch
from socket_bridge.listener import Listener, bind
from socket_bridge.protocol import MAX_LINE, ToolRequest


@pytest.fixture
def home() -> Iterator[Home]:
    with short_home() as home:
        yield home


class Executor:
    """The relay: `echo`, `deny`, `hold` until `release`, `big N`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.running = self.most = self.cancelled = 0
        self.gate = asyncio.Event()

    async def __call__(self, agent: str, request: ToolRequest) -> ToolResult:
        self.calls.append((agent, " ".join(request.args)))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self.run(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def run(self, request: ToolRequest) -> ToolResult:
        if request.tool == "deny":
            raise Denied("Permission denied")
        if request.tool == "crash":
            raise RuntimeError("/home/op/secret")
        if request.tool == "hold":
            await self.gate.wait()
        if request.tool == "big":
            return ToolResult(True, "x" * int(request.args[0]))
        return ToolResult(True, " ".join(request.args))


class Bridge:
    """Listeners for some agents over one executor."""

    def __init__(self, home: Home, *agents: str) -> None:
        self.home = home
        self.executor = Executor()
        self.hangups = HangupWatch(asyncio.get_running_loop())
        self.desks = {agent: Desk(agent, self.executor) for agent in agents}
        self.listeners = [Listener(home, desk, self.hangups) for desk in self.desks.values()]

    async def __aenter__(self) -> Bridge:
        for listener in self.listeners:
            await listener.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for listener in self.listeners:
            await listener.close()
        self.hangups.close()
        assert self.executor.running == 0

    async def client(self, agent: str = "a", limit: int = 8 * 1024 * 1024) -> Client:
        reader, writer = await asyncio.open_unix_connection(self.home.gateway_socket(agent), limit=limit)
        return Client(reader, writer)


class Client:
    """An agent's process at the other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *requests: Any) -> None:
        self.writer.write(b"".join(r if isinstance(r, bytes) else line(*r) for r in requests))

    async def answer(self) -> dict[str, Any]:
        text = await self.reader.readline()
        answer: dict[str, Any] = json.loads(text)
        return answer

    async def ask(self, *words: str) -> dict[str, Any]:
        self.send(words)
        return await self.answer()

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


def line(tool: str, *args: str, **fields: Any) -> bytes:
    request = {"type": "tool_request", "tool": tool, "args": list(args)} | fields
    return json.dumps(request).encode() + b"\n"


def run(home: Home, test: Callable[[Bridge], Awaitable[None]], *agents: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Bridge(home, *(agents or ("a",))) as bridge:
            await test(bridge)

    uvloop.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_pipelined_requests_are_answered_in_order(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        client = await bridge.client()
        client.send(*[("echo", str(n)) for n in range(500)])
        assert [(await client.answer())["output"] for _ in range(500)] == [str(n) for n in range(500)]
        assert bridge.executor.most == 1
        await client.close()

    run(home, test)


def test_a_connection_survives_everything_malformed(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        client = await bridge.client()
        client.send(
            b"garbage\n", b"\xff\xfe\n", b"\n", b"{}\n", b"x" * (2 * MAX_LINE) + b"\n", ("deny",), ("crash",)
        )
        errors = [(await client.answer())["error"] for _ in range(7)]
        assert [error.split(":")[0] for error in errors] == [
            *["not a tool_request"] * 4,
            f"the request is longer than {MAX_LINE} bytes",
            "Permission denied",
            "internal error in the gateway",
        ]
        assert (await client.ask("echo", "still here"))["output"] == "still here"
        await client.close()

    run(home, test)


def test_the_agent_is_the_listeners_whatever_the_payload_says(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        client = await bridge.client("b")
        client.send(line("echo", "x", agent="a", session="s", sessionContext={"agent": "a"}, channel="c"))
        assert (await client.answer())["success"]
        assert bridge.executor.calls == [("b", "x")]
        await client.close()

    run(home, test, "a", "b")


def test_the_largest_request_and_a_large_answer_pass(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        client = await bridge.client()
        word = "x" * (500 * 1024)
        assert len((await client.ask("echo", word, word))["output"]) == 2 * len(word) + 1
        assert len((await client.ask("big", "900000"))["output"]) == 900_000
        await client.close()

    run(home, test)


def test_a_disconnect_cancels_what_runs_and_forgets_what_waits(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        client = await bridge.client()
        client.send(("hold",), ("echo", "never"))
        await until(lambda: bridge.executor.running == 1)
        await client.close()
        await until(lambda: bridge.executor.cancelled == 1)
        assert bridge.executor.calls == [("a", "")]

    run(home, test)


def test_a_disconnect_is_noticed_while_reading_is_paused(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        client = await bridge.client()
        client.send(("hold",), *[("echo", "x" * 1000)] * 1000)
        await until(lambda: bridge.executor.running == 1)
        client.writer.transport.abort()  # closing would wait until everything was sent
        await until(lambda: bridge.executor.cancelled == 1)

    run(home, test)


def test_a_client_that_only_stopped_writing_gets_its_answers(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        client = await bridge.client()
        client.send(("hold", "1"), ("echo", "2"), b'{"type":"tool_request","tool":"half')
        client.writer.write_eof()
        await until(lambda: bridge.executor.running == 1)
        bridge.executor.gate.set()
        assert [(await client.answer())["output"] for _ in range(2)] == ["1", "2"]
        assert await client.reader.read() == b""
        assert len(bridge.executor.calls) == 2
        await client.close()

    run(home, test)


def test_a_client_that_stopped_writing_and_then_vanishes_is_noticed(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        client = await bridge.client()
        client.send(("hold",))
        client.writer.write_eof()
        await until(lambda: bridge.executor.running == 1)
        await client.close()
        await until(lambda: bridge.executor.cancelled == 1)

    run(home, test)


def test_an_idle_or_silent_connection_is_fine_and_costs_no_call(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        silent, half = await bridge.client(), await bridge.client()
        half.send(b'{"type":"tool_req')
        client = await bridge.client()
        assert (await client.ask("echo", "hi"))["output"] == "hi"
        half.send(b'uest","tool":"echo","args":["joined"]}\n')
        assert (await half.answer())["output"] == "joined"
        for one in (silent, half, client):
            await one.close()

    run(home, test)


def test_connections_above_the_limit_are_told_and_closed(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        clients = [await bridge.client() for _ in range(desks.MAX_CONNECTIONS)]
        for client in clients:
            assert (await client.ask("echo", "in"))["success"]
        late = await bridge.client()
        answer = await late.answer()
        assert answer["error"] == "agent 'a' has 64 connections already"
        assert answer["exitCode"] == 75
        assert await late.reader.read() == b""
        other = await bridge.client("b")
        assert (await other.ask("echo", "hi"))["success"]
        await clients.pop().close()
        await until(lambda: len(bridge.desks["a"]) < desks.MAX_CONNECTIONS)
        again = await bridge.client()
        assert (await again.ask("echo", "hi"))["success"]
        for client in (*clients, late, other, again):
            await client.close()

    run(home, test, "a", "b")


def test_an_agent_has_sixteen_calls_in_flight_and_connections_take_turns(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        greedy = [await bridge.client() for _ in range(desks.IN_FLIGHT)]
        for client in greedy:
            client.send(*[("hold",)] * 20)
        await until(lambda: bridge.executor.running == desks.IN_FLIGHT)
        modest, other = await bridge.client(), await bridge.client("b")
        modest.send(("echo", "modest"))
        assert (await other.ask("echo", "hi"))["success"]
        assert ("a", "modest") not in bridge.executor.calls
        bridge.executor.gate.set()
        assert (await modest.answer())["output"] == "modest"
        assert bridge.executor.calls.index(("a", "modest")) <= 2 * desks.IN_FLIGHT + 1
        assert bridge.executor.most <= desks.IN_FLIGHT + 1
        for client in (*greedy, modest, other):
            await client.close()

    run(home, test, "a", "b")


def test_an_agent_that_does_not_read_is_not_served_further(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        client = await bridge.client(limit=1024)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(*[("big", "100000")] * 200)
        other = await bridge.client("b")
        for _ in range(20):
            assert (await other.ask("echo", "hi"))["success"]
        served = sum(1 for agent, _ in bridge.executor.calls if agent == "a")
        assert served < 20
        await client.close()
        await other.close()

    run(home, test, "a", "b")


def test_unread_answers_of_one_agent_are_bounded(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        clients = [await bridge.client() for _ in range(40)]
        for client in clients:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(("big", "900000"))
        await until(lambda: len(bridge.executor.calls) == 40)
        await until(lambda: len(bridge.desks["a"]) < 40)
        assert bridge.desks["a"].unread <= desks.MAX_UNREAD
        for client in clients:
            await client.close()

    run(home, test)


def test_half_sent_requests_of_one_agent_are_bounded(home: Home) -> None:
    async def test(bridge: Bridge) -> None:
        clients = [await bridge.client() for _ in range(40)]
        for client in clients:
            client.send(b"x" * 1_000_000)
        await until(lambda: len(bridge.desks["a"]) < 40)
        assert bridge.desks["a"].unparsed <= desks.MAX_UNPARSED
        last = await bridge.client()
        assert (await last.ask("echo", "hi"))["success"]
        for client in (*clients, last):
            await client.close()

    run(home, test)


def test_a_flood_leaves_another_agent_its_turn(home: Home) -> None:
    """Between another agent's request and its answer a flood advances by turns, not by all it sent."""

    async def test(bridge: Bridge) -> None:
        clients = [await bridge.client() for _ in range(20)]

        async def flood(client: Client) -> None:
            while True:
                client.send(*[line("deny")] * 1000)
                for _ in range(1000):
                    await client.reader.readline()

        floods = [asyncio.create_task(flood(client)) for client in clients]
        other = await bridge.client("b")
        advanced: list[int] = []
        while len(advanced) < 30:
            before = len(bridge.executor.calls)
            assert (await other.ask("echo", "hi"))["success"]
            advanced.append(len(bridge.executor.calls) - before)
        for task in floods:
            task.cancel()
        await asyncio.wait(floods)
        for client in (*clients, other):
            await client.close()
        assert max(advanced) > 20, "there was no flood"
        assert sorted(advanced)[15] < 4000

    run(home, test, "a", "b")


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


def test_blocking_clients_see_the_same(home: Home) -> None:
    """A plain blocking socket, as in an agent's script."""

    async def test(bridge: Bridge) -> None:
        def script() -> list[Any]:
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(str(home.gateway_socket("a")))
                with s.makefile("rwb") as file:
                    file.write(line("echo", "1") + line("echo", "2"))
                    file.flush()
                    return [json.loads(file.readline())["output"] for _ in range(2)]

        assert await asyncio.to_thread(script) == ["1", "2"]

    run(home, test)
