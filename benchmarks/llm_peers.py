"""Roles of the llm benchmark's processes; the protocol is that of `benchmarks.peers`.

simulator        the provider simulator of the tests; prints its url. A model `long-N` says N words at once,
                 any other one a single word
sandbox          an agent's workspace without an AGENTS.md, which each new session asks for
bare URL         the openai SDK alone:         {"of": model, "count"} → {"first_ms", "whole_ms"}, medians
stack            prompts through the house:    {"of": agent, "count"} → the same
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median
from typing import Any

import uvloop

from beige.bus import Bus
from beige.errors import NotFound
from beige.messages.llm import PromptRequest
from beige.paths import Home
from benchmarks.peers import say
from tests.simulator import openai_wire
from tests.simulator.replies import Raw, Say, reply
from tests.simulator.server import Recorded, Simulator

WORD = "word "
KEY = "sk-benchmark-0123456789"


def simulator() -> None:
    answers: dict[str, Raw] = {}

    def answer(request: Recorded) -> Raw:
        model = str(request.body["model"])
        if model not in answers:
            words = int(model.removeprefix("long-")) if model.startswith("long-") else 1
            answers[model] = Raw(b"".join(openai_wire.events(reply(Say(WORD * words, words)), model)))
        return answers[model]

    with Simulator(answer) as running:
        say(running.url)
        sys.stdin.read()


async def sandbox() -> None:
    async def read(request: Any, body: Any) -> None:
        raise NotFound("an empty workspace")

    bus = Bus(Home.find(), "sandbox/0")
    bus.serve("sandbox", {"sandbox.read": read}, capacity=8)
    await bus.start()
    say("ready")
    await asyncio.Event().wait()


async def bare(url: str) -> None:
    import openai

    client = openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0)

    async def deltas(model: str, batch: int) -> AsyncIterator[str]:
        sent: Any = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
        async with await client.chat.completions.create(**sent, stream=True) as chunks:
            async for chunk in chunks:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content

    say("ready")
    await _serve(deltas)


async def stack() -> None:
    bus = Bus(Home.find(), "cli/1")
    await bus.start()

    async def deltas(agent: str, batch: int) -> AsyncIterator[str]:
        opened = bus.open(
            "llm.prompt", PromptRequest("hello"), agent=agent, session=f"{agent}-{batch}", channel="bench"
        )
        async with opened as stream:
            async for event in stream:
                if event.kind == "text_delta":
                    yield event.text
            await stream.result()

    say("ready")
    await _serve(deltas)
    await bus.close()


async def _serve(deltas: Callable[[str, int], AsyncIterator[str]]) -> None:
    loop = asyncio.get_running_loop()
    batch = 0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        question = json.loads(line)
        batch += 1
        times = [await _timed(deltas(question["of"], batch)) for _ in range(question["count"] + 1)]
        first, whole = zip(*times[1:], strict=True)  # the first one of a session reads the workspace
        say({"first_ms": median(first), "whole_ms": median(whole)})


async def _timed(deltas: AsyncIterator[str]) -> tuple[float, float]:
    """Milliseconds until the first piece of the answer, and until its end."""
    began, first = time.perf_counter(), 0.0
    async for _ in deltas:
        first = first or time.perf_counter()
    return (first - began) * 1000, (time.perf_counter() - began) * 1000


ROLES: dict[str, Callable[..., Awaitable[None]]] = {"sandbox": sandbox, "bare": bare, "stack": stack}


def main(role: str, *arguments: str) -> None:
    if role == "simulator":
        simulator()
    else:
        uvloop.run(ROLES[role](*arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
