"""llm workers as they may be in hostile hands: each does with its prompt whatever a test says."""

import asyncio
import contextlib

from beige.bus import Bus
from beige.messages.base import AgentRef, Empty
from beige.messages.llm import PromptRequest, PromptResult
from beige.messages.policy import LeaseRequest


class Worker:
    """Serves `llm.prompt` with the user's real key."""

    def __init__(self, home, user):
        self.bus, self.do = Bus(home, user), None
        self.bus.serve("llm", {"llm.prompt": self._prompt})

    async def _prompt(self, request, body):
        await self.do(request)
        return PromptResult("s", "done", "end_turn", "p/m")


class Play:
    """What a test has: workers, and an operator's bus."""

    def __init__(self, cli, workers):
        self.cli, self.workers = cli, workers

    async def ask(self, do, agent="travel", session=""):
        """A prompt of which the next worker does `do`."""
        for worker in self.workers:
            worker.do = do
        return await self.cli.call("llm.prompt", PromptRequest("x"), agent=agent, session=session, ttl_s=120)

    async def account(self, agent, scope, session=""):
        """The line of `policy.budget`."""
        report = await self.cli.call("policy.budget", AgentRef(), agent=agent, session=session)
        (line,) = [line for line in report.lines if (line.scope, line.session) == (scope, session)]
        return line


def with_workers(house, play, number=1):
    """Run `play(Play)` beside the processes of `house`."""

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            cli = await stack.enter_async_context(Bus(house.home, "cli/0"))
            workers = [Worker(house.home, f"llm/{n}") for n in range(number)]
            for worker in workers:
                await stack.enter_async_context(worker.bus)
            async with asyncio.timeout(150):
                while await _llm_peers(cli) != number:
                    await asyncio.sleep(0.01)  # the broker has not noticed yet that one before us is dead
                await play(Play(cli, workers))

    asyncio.run(main())


async def _llm_peers(cli):
    stats = await cli.call("bus.stats", Empty())
    return sum(peer.service == "llm" for peer in stats.peers)


@contextlib.asynccontextmanager
async def lease(request, provider="p", model="m", **fields):
    """A lease that was granted, as a stream; `granted` on it is the item that said so."""
    body = LeaseRequest(provider, model, **fields)
    async with request.open("policy.lease", body, ttl_s=60) as stream:
        async for item in stream:
            if item.state == "granted":
                stream.granted = item
                break
        yield stream


async def refusal(request, provider="p", model="m", **fields):
    async with request.open("policy.lease", LeaseRequest(provider, model, **fields), ttl_s=60) as stream:
        return await stream.result()
