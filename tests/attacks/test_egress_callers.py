"""Somebody tries to use an agent's way out who is not that agent, or takes it all for itself.

A real house (broker, policy, audit, egress, bridge) on an internet of the test's own; each attempt has its
control, the same connection where it is allowed. The containers' part: tests/docker/test_sandbox_open.py.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from pathlib import Path

import pytest

from beige import wire
from beige.bus import Bus
from beige.bus.serving import Request, Server
from beige.errors import BeigeError, Denied, Malformed, Overloaded
from beige.keys import read_seal_key
from beige.messages import encode
from beige.messages.egress import ConnectRequest, ConnectResult
from beige.messages.policy import LearnRequest
from beige.seals import request_digest, sign_receipt, sign_verdict
from beige.wire import Header
from tests.attacks.egress_scene import CONNECTIONS, Scene, status
from tests.simulator.internet import ADDRESS


@pytest.fixture(scope="module")
def whole_scene():
    with contextlib.ExitStack() as stack:
        yield Scene(stack)


@pytest.fixture
def scene(whole_scene):
    yield whole_scene
    whole_scene.hang_up()


# --- who asks -----------------------------------------------------------------------------------------------


def test_a_claimed_identity_counts_for_nothing(scene):
    """`other` has egress and no rule; whatever it says, it is `other`."""
    password = base64.b64encode(b"call:made-up-token").decode()
    claims = ("X-Beige-Agent: travel", "Agent: travel", f"Proxy-Authorization: Basic {password}")
    assert status(scene.client("other").connect(scene.web.place, *claims)) == 403
    assert scene.records()[-1].agent == "other"
    assert status(scene.client("travel").connect(scene.web.place, *claims)) == 200
    mine = scene.records()[-1]
    assert (mine.agent, mine.session, mine.parent) == ("travel", "", "")


def test_an_agent_without_egress_has_no_socket(scene):
    assert not scene.home.egress_socket("idle").exists()
    assert scene.home.egress_socket("travel").is_socket()


def on_bus(scene, user, play):
    async def main():
        async with Bus(scene.home, user) as bus, asyncio.timeout(60):
            return await play(bus)

    return asyncio.run(main())


@pytest.mark.parametrize("user", ["cli/1", "gateway/0", "llm/0", "tools/0", "sandbox/0"])
def test_no_other_process_has_an_agents_way_out(scene, user):
    async def play(bus):
        with pytest.raises(Denied, match="may not call"):
            await bus.call("egress.connect", ConnectRequest("web.example", scene.web.port), agent="travel")

    on_bus(scene, user, play)


@pytest.mark.parametrize(
    ("agent", "host", "error"),
    [
        ("travel", "web.example", None),
        ("travel", "denied.example", Denied),
        ("other", "web.example", Denied),
        ("idle", "web.example", Denied),
        ("nobody", "web.example", Denied),
        ("travel", "WEB.example", Malformed),
        ("travel", "web.example.", Malformed),
        ("travel", "0x7f.1", Malformed),
    ],
)
def test_a_bridge_in_hostile_hands_gets_what_the_named_agent_may_and_no_more(scene, agent, host, error):
    async def play(bus):
        async with bus.open("egress.connect", ConnectRequest(host, scene.web.port), agent=agent) as stream:
            first = [item async for item in stream][:1] if error else [await anext(aiter(stream))]
            if error is None:
                assert first == [b""]
                return
            with pytest.raises(error):
                await stream.result()
            assert first == []

    on_bus(scene, "bridge/0", play)


def test_a_bridge_in_hostile_hands_can_not_open_more_connections_than_allowed(scene):
    async def play(bus):
        request = ConnectRequest("rooms.example", scene.port)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(CONNECTIONS):
                stream = await stack.enter_async_context(bus.open("egress.connect", request, agent="travel"))
                assert await anext(aiter(stream)) == b""
            with pytest.raises(Overloaded):
                await bus.call("egress.connect", request, agent="travel")

    scene.internet.name("rooms.example", [ADDRESS])
    on_bus(scene, "bridge/0", play)


def test_the_executor_refuses_a_verdict_that_is_not_policys(scene):
    """What a broker in hostile hands could make up; the control is the same call with the right seals."""
    verdict_key, receipt_key = (read_seal_key(scene.home, name) for name in ("verdict", "receipt"))
    body = encode(ConnectRequest("web.example", scene.web.port))
    reached = []

    async def connect(request, _):
        reached.append(request.agent)
        return ConnectResult()

    async def play(bus):
        server = Server(bus, "egress", {"egress.connect": connect}, {}, 1, (verdict_key, receipt_key))
        named = {"service": "egress", "method": "connect", "agent": "travel", "call": "x-1"}
        header = Header(hop=wire.EXECUTE, **named)
        digest = request_digest(header, body)
        yes, no = (sign_verdict(verdict_key, digest, allowed, "x") for allowed in (True, False))
        forged = sign_verdict(b"f" * 32, digest, True, "x")
        seals = [(b"", b""), (forged, sign_receipt(receipt_key, digest, forged)), (yes, b"r" * 32),
                 (no, sign_receipt(receipt_key, digest, no))]  # fmt: skip
        for verdict, receipt in seals:
            header = Header(hop=wire.EXECUTE, **named, verdict=verdict, receipt=receipt)
            with pytest.raises(Denied):
                await server._handle(Request(bus, header, body))
        other = encode(ConnectRequest("evil.example", 443))
        good = Header(hop=wire.EXECUTE, **named, verdict=yes, receipt=sign_receipt(receipt_key, digest, yes))
        with pytest.raises(Denied):
            await server._handle(Request(bus, good, other))
        assert reached == []
        await server._handle(Request(bus, good, body))
        assert reached == ["travel"]

    on_bus(scene, "cli/1", play)


def test_learning_opens_the_list_and_not_the_guards(scene):
    scene.internet.name("unlisted.example", [ADDRESS])
    scene.internet.name("inside.example", ["10.0.0.5"])

    async def play(bus):
        async with bus.open("policy.learn", LearnRequest(50), agent="other", ttl_s=60) as stream:
            answers = {}
            for host in ("unlisted.example", "inside.example"):
                place = f"{host}:{scene.web.port}"
                answers[host] = await asyncio.to_thread(lambda p=place: scene.client("other").connect(p))
                while status(answers[host]) == 403 and b"to allow it" in answers[host]:
                    answers[host] = await asyncio.to_thread(lambda p=place: scene.client("other").connect(p))
            await stream.end()
            return answers, await stream.result()

    answers, learned = on_bus(scene, "cli/1", play)
    assert status(answers["unlisted.example"]) == 200
    assert b"egress reaches the internet only" in answers["inside.example"]
    assert f"unlisted.example:{scene.web.port}" in learned.allow
    assert status(scene.client("other").connect(f"unlisted.example:{scene.web.port}")) == 403
    assert {r.rule for r in scene.records() if r.agent == "other" and r.decision == "allowed"} == {"learning"}


@pytest.mark.parametrize("user", ["llm/0", "tools/0", "bridge/0", "sandbox/0"])
def test_only_operators_suspend_a_list(scene, user):
    async def play(bus):
        with pytest.raises(BeigeError, match="may not call"):
            await bus.call("policy.learn", LearnRequest(1), agent="travel")

    on_bus(scene, user, play)


# --- floods -------------------------------------------------------------------------------------------------


def descriptors(process):
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def test_ten_thousand_connections_are_bounded_and_leave_the_other_agent_served(scene):
    bridge = scene.house.processes["bridge"]
    before = descriptors(bridge)
    path = str(scene.home.egress_socket("other"))
    held, refused = [], 0
    try:
        for n in range(10_000):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(path)  # waits while the listener's queue is full
            if n % 20 == 0 and len(held) < 400:
                held.append(connection)
            else:
                connection.close()
        assert descriptors(bridge) - before < 600
        assert status(scene.client("travel").get(f"http://{scene.web.place}/")) == 200
        for connection in held:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                refused += connection.recv(12) == b"HTTP/1.1 503"
        assert refused > 0
    finally:
        for connection in held:
            connection.close()
    assert status(scene.client("other").connect(scene.web.place)) == 403, "it answers again"
