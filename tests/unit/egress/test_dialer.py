"""Which address a connection goes to. Nothing is sent to an address outside this machine."""

import asyncio
import socket

import pytest

from beige.destinations import Destination
from beige.errors import Failed
from services.egress.dialer import Dialer, Refusal, SystemResolver


def resolving(*answers):
    """A resolver that gives these answers in turn, and notes what it was asked."""
    asked = []

    async def resolve(host, port, agent):
        asked.append(host)
        answer = answers[len(asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return resolve, asked


def test_a_name_of_this_machine_is_refused_with_the_real_resolver():
    async def main():
        resolver = SystemResolver()
        try:
            with pytest.raises(Refusal, match="egress reaches the internet only"):
                await Dialer(resolver).open(Destination("localhost", 9), "travel")
        finally:
            resolver.close()

    asyncio.run(main())


def test_a_public_address_of_this_machine_would_be_refused_too():
    resolve, _ = resolving(["127.0.5.9"])
    own = Dialer(resolve, lambda address: "this machine" if address == "127.0.5.9" else "")
    with pytest.raises(Refusal, match="this machine"):
        asyncio.run(own.open(Destination("a.example", 9), "travel"))


def test_one_bad_address_among_good_ones_refuses_the_name():
    resolve, asked = resolving(["127.0.5.1", "10.0.0.1"])
    dialer = Dialer(resolve, lambda address: "private" if address.startswith("10.") else "")
    with pytest.raises(Refusal) as caught:
        asyncio.run(dialer.open(Destination("a.example", 9), "travel"))
    assert caught.value.address == "10.0.0.1"
    assert "10.0.0.1" not in str(caught.value)
    assert asked == ["a.example"]


def test_an_address_is_not_asked_for_as_a_name():
    resolve, asked = resolving(["127.0.5.1"])
    with pytest.raises(Refusal):
        asyncio.run(Dialer(resolve).open(Destination("10.0.0.1", 9), "travel"))
    assert asked == []


def test_the_next_address_is_tried_when_one_does_not_answer():
    async def main():
        accepted = asyncio.Event()

        async def serve(_reader, writer):
            accepted.set()
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.5.1", 0)
        port = listening.sockets[0].getsockname()[1]
        resolve, asked = resolving(["127.0.5.2", "127.0.5.1"])
        link = await Dialer(resolve, lambda _: "").open(Destination("a.example", port), "travel")
        await asyncio.wait_for(accepted.wait(), 30)
        link.writer.close()
        await link.writer.wait_closed()
        listening.close()
        assert asked == ["a.example"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "answer", [socket.gaierror(socket.EAI_NONAME, "x"), UnicodeError("x"), []], ids=["none", "odd", "empty"]
)
def test_a_name_without_addresses_is_a_failure_not_a_crash(answer):
    resolve, _ = resolving(answer)
    with pytest.raises(Failed):
        asyncio.run(Dialer(resolve, lambda _: "").open(Destination("a.example", 9), "travel"))
