"""A listener on a real socket, with a relay of our own: what one agent may have, and what others keep."""

from __future__ import annotations

import asyncio

from beige.paths import Home
from socket_bridge import desk as desks
from tests.unit.bridge.bridge_stage import Bridge, Client, line, run, until


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
