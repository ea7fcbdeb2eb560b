"""A listener on a real socket, with a relay of our own: order, identity, disconnects, blocking clients."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from beige.paths import Home
from socket_bridge.protocol import MAX_LINE
from tests.unit.bridge.bridge_stage import Bridge, line, run, until


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
