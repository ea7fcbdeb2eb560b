"""Roles of the benchmarks' processes. Each prints one JSON line when it is ready, and one per question.

bus-executor     serves `tools.call` (governed) or `sandbox.list` (not governed); does nothing
bus-caller       {"method", "agent", "count", "concurrency"} → {"p50_ms", "p99_ms", "each_ms"}
lease-caller     {"count"} → {"p50_ms", "each_ms"}: an llm worker in a prompt, each lease granted and reported
plain-proxy      libzmq's own C proxy between a ROUTER and a DEALER
plain-executor   answers what the proxy brings
plain-caller     {"count", "concurrency"} → {"p50_ms", "each_ms"}
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Callable, Coroutine
from statistics import median
from typing import Any

import uvloop
import zmq

from beige.bus import Bus
from beige.messages import encode
from beige.messages.base import Empty
from beige.messages.llm import PromptRequest, PromptResult
from beige.messages.policy import LeaseReport, LeaseRequest, Usage
from beige.messages.sandbox import ExecRequest, SandboxInfo, SandboxList
from beige.messages.tools import ToolCall, ToolResult
from beige.paths import Home

PAYLOAD = 200
HEADER = 130
"""Bytes of a typical envelope."""
BODIES: dict[str, Any] = {
    "sandbox.list": Empty(),
    "tools.call": ToolCall("kv", ["x" * PAYLOAD]),
    "sandbox.exec": ExecRequest(argv=["true"]),
}


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def spent(each: list[float], seconds: float) -> dict[str, float]:
    return {"p50_ms": median(each) * 1000, "p99_ms": p99(each) * 1000, "each_ms": seconds / len(each) * 1000}


def p99(each: list[float]) -> float:
    """Nearest rank: of 100 values the 99th, not the largest."""
    return sorted(each)[math.ceil(len(each) * 0.99) - 1]


async def bus_executor(user: str) -> None:
    async def listing(request: Any, body: Any) -> SandboxList:
        return SandboxList([SandboxInfo("x" * PAYLOAD)])

    async def call(request: Any, body: Any) -> ToolResult:
        return ToolResult(True, "x" * PAYLOAD)

    bus = Bus(Home.find(), user)
    if user.startswith("tools/"):
        bus.serve("tools", {"tools.call": call}, capacity=256)
    else:
        bus.serve("sandbox", {"sandbox.list": listing}, capacity=256)
    await bus.start()
    say("ready")
    await asyncio.Event().wait()


async def bus_caller(user: str) -> None:
    bus = Bus(Home.find(), user)
    await bus.start()
    say("ready")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        say(await _timed_calls(bus, **json.loads(line)))
    await bus.close()


async def _timed_calls(bus: Bus, method: str, agent: str, count: int, concurrency: int) -> dict[str, float]:
    each: list[float] = []

    async def caller() -> None:
        for _ in range(count // concurrency):
            began = time.perf_counter()
            await bus.call(method, BODIES[method], agent=agent)
            each.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(caller())
    return spent(each, time.perf_counter() - began)


async def lease_caller(user: str, operator: str) -> None:
    """Both ends of a prompt, during which nothing is done but to take leases and give them back."""
    found: list[dict[str, float]] = []

    async def prompt(request: Any, body: PromptRequest) -> PromptResult:
        found.append(await _timed_leases(request, int(body.text)))
        return PromptResult("s", "", "end_turn", "script/m")

    worker, cli = Bus(Home.find(), user), Bus(Home.find(), operator)
    worker.serve("llm", {"llm.prompt": prompt})
    await worker.start()
    await cli.start()
    say("ready")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        await cli.call("llm.prompt", PromptRequest(str(json.loads(line)["count"])), agent="travel", ttl_s=60)
        say(found.pop())
    await cli.close()
    await worker.close()


async def _timed_leases(request: Any, count: int) -> dict[str, float]:
    report = encode(LeaseReport("answered", usage=Usage(1000, 100)))
    each: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        async with request.open("policy.lease", LeaseRequest("script", "m", 1000)) as stream:
            assert (await anext(aiter(stream))).state == "granted"
            await stream.send(report)
            await stream.end()
            await stream.result()
        each.append(time.perf_counter() - began)
    return spent(each, sum(each))


def plain_proxy(front: str, back: str) -> None:
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.bind(front)
    dealer.bind(back)
    say("ready")
    zmq.proxy(router, dealer)


def plain_executor(back: str) -> None:
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(back)
    say("ready")
    while True:
        rid, header, _ = socket.recv_multipart()
        socket.send_multipart([rid, header, b"y" * PAYLOAD])


def plain_caller(front: str) -> None:
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(front)
    say("ready")
    for line in sys.stdin:
        say(_timed_messages(socket, **json.loads(line)))


def _timed_messages(socket: zmq.Socket[bytes], count: int, concurrency: int) -> dict[str, float]:
    message = [b"h" * HEADER, b"x" * PAYLOAD]
    each: list[float] = []
    began = last = time.perf_counter()
    for _ in range(concurrency):
        socket.send_multipart(message)
    for number in range(count):
        socket.recv_multipart()
        now = time.perf_counter()
        each.append(now - last)
        last = now
        if number + concurrency < count:
            socket.send_multipart(message)
    return spent(each, time.perf_counter() - began)


BUS_ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "bus-executor": bus_executor,
    "bus-caller": bus_caller,
    "lease-caller": lease_caller,
}
PLAIN_ROLES: dict[str, Callable[..., None]] = {
    "plain-proxy": plain_proxy,
    "plain-executor": plain_executor,
    "plain-caller": plain_caller,
}


def main(role: str, *arguments: str) -> None:
    if role in BUS_ROLES:
        uvloop.run(BUS_ROLES[role](*arguments))
    else:
        PLAIN_ROLES[role](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
