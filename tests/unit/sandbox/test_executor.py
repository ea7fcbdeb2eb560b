"""The channel's side of the protocol against an executor that behaves, lags, lies or dies."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable

import pytest

from beige.errors import Malformed, TooLarge
from services.sandbox.channel import CannotRun, ChannelLost, Command
from services.sandbox.executor import WINDOW, ExecutorChannel

CREDIT, KILL, STDIN = 6, 3, 2
STDOUT, STDERR, EXIT, ERROR, HELLO, PONG, STDIN_CREDIT, STDOUT_TAIL, STDERR_TAIL = range(16, 25)
LS = Command(("ls", "-l", "a b"), {"PATH": "/bin"}, cwd="/workspace", timeout_s=1.5, limit_bytes=1000)

WithExecutor = Callable[..., None]


def test_a_command_runs_to_its_exit(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        running = asyncio.create_task(channel.run(LS))
        job, run = await fake.run()
        assert run.argv == ["ls", "-l", "a b"]
        assert run.env == {"PATH": "/bin"}
        assert (run.cwd, run.timeout_ms, run.limit, run.has_stdin) == ("/workspace", 1500, 1000, False)
        fake.send(STDOUT, job, b"one")
        fake.send(STDERR, job, b"two")
        fake.send(STDOUT, job, b"three")
        fake.exit(job, 3, out=8, err=3)
        ended = await running
        assert ended.status == 3
        assert (bytes(ended.stdout.head), bytes(ended.stderr.head)) == (b"onethree", b"two")
        assert (ended.stdout.cut, ended.stderr.cut) == (0, 0)
        assert channel.running == 0

    with_executor(test)


def test_jobs_do_not_mix(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        first, second = (asyncio.create_task(channel.run(LS)) for _ in range(2))
        (one, _), (two, _) = await fake.run(), await fake.run()
        assert one != two
        fake.send(STDOUT, two, b"2")
        fake.send(STDOUT, one, b"1")
        fake.exit(two, 2)
        fake.exit(one, 1)
        assert bytes((await first).stdout.head) == b"1"
        assert bytes((await second).stdout.head) == b"2"

    with_executor(test)


def test_output_beyond_the_limit_is_counted_and_its_tail_kept(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        running = asyncio.create_task(channel.run(LS))
        job, _ = await fake.run()
        fake.send(STDOUT, job, bytes(1000))
        fake.send(STDOUT_TAIL, job, b"tail")
        fake.exit(job, out=50_000)
        ended = await running
        assert (len(ended.stdout.head), ended.stdout.tail) == (1000, b"tail")
        assert ended.stdout.cut == 50_000 - 1000 - 4

    with_executor(test)


def test_totals_that_say_less_than_was_sent_are_not_believed(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        running = asyncio.create_task(channel.run(LS))
        job, _ = await fake.run()
        fake.send(STDOUT, job, b"12345")
        fake.exit(job, out=1)
        ended = await running
        assert (ended.stdout.total, ended.stdout.cut) == (5, 0)

    with_executor(test)


def test_an_error_frame_is_cannot_run(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        running = asyncio.create_task(channel.run(LS))
        job, _ = await fake.run()
        fake.error(job, 2, "exec: No such file or directory")
        with pytest.raises(CannotRun) as caught:
            await running
        assert caught.value.errno == 2
        assert channel.alive

    with_executor(test)


HELLO_1 = struct.pack("<II", 1, 1)
EXITED = struct.pack("<iBQQ", 0, 0, 0, 0)

LIES = [
    pytest.param([(99, 0, b"")], id="unknown type"),
    pytest.param([(HELLO, 0, HELLO_1)], id="second hello"),
    pytest.param([(PONG, 1, b"")], id="pong nobody asked for"),
    pytest.param([(STDOUT, 777, b"x")], id="output of an unknown job"),
    pytest.param([(EXIT, 777, EXITED)], id="exit of an unknown job"),
    pytest.param([(STDOUT, 1, bytes(1001))], id="output over the limit"),
    pytest.param([(STDOUT, 1, bytes(1000)), (STDOUT, 1, b"x")], id="output over the limit, later"),
    pytest.param([(STDOUT_TAIL, 1, b"x"), (STDOUT_TAIL, 1, b"y")], id="two tails"),
    pytest.param([(STDOUT_TAIL, 1, b"x"), (STDERR, 1, b"y")], id="output after a tail"),
    pytest.param([(STDIN_CREDIT, 1, b"\xff\xff\xff\xff")], id="absurd stdin credit"),
]


@pytest.mark.parametrize("frames", LIES)
def test_a_violation_closes_the_connection_and_loses_its_jobs(frames, with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        running = [asyncio.create_task(channel.run(LS)) for _ in range(2)]
        await fake.run()
        for frame in frames:
            fake.send(*frame)
        for one in running:
            with pytest.raises(ChannelLost, match="protocol"):
                await one
        assert not channel.alive
        assert await fake.closed()
        with pytest.raises(ChannelLost):
            await channel.run(LS)

    with_executor(test)


def test_output_beyond_the_credit_is_a_violation(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        gate = asyncio.Event()

        async def stuck(_stream: str, _data: bytes) -> None:
            await gate.wait()

        big = Command(("x",), {}, timeout_s=5, limit_bytes=10 * WINDOW)
        running = asyncio.create_task(channel.run(big, stuck))
        job, run = await fake.run()
        assert run.credit == WINDOW
        fake.send(STDOUT, job, bytes(WINDOW // 2))
        fake.send(STDERR, job, bytes(WINDOW // 2))
        fake.send(STDERR, job, b"!")
        await channel.lost.wait()
        gate.set()
        with pytest.raises(ChannelLost, match="credit"):
            await running

    with_executor(test)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param((STDOUT, 1, b"x"), id="output"),
        pytest.param((HELLO, 0, struct.pack("<II", 2, 1)), id="newer protocol"),
        pytest.param((HELLO, 0, struct.pack("<II", 0, 1)), id="older protocol"),
    ],
)
def test_a_connection_that_does_not_start_with_hello_is_closed(first, with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        fake.send(*first)
        assert not await channel.ready()
        assert await fake.closed()

    with_executor(test, greet=False)


def test_credit_is_granted_as_output_is_taken(with_executor: WithExecutor) -> None:
    """A caller that does not take its output stops the command; taken output lets it go on."""

    async def test(channel, fake):
        taken, gate = 0, asyncio.Semaphore(0)

        async def take(_stream: str, data: bytes) -> None:
            nonlocal taken
            await gate.acquire()
            taken += len(data)

        big = Command(("x",), {}, timeout_s=5, limit_bytes=10 * WINDOW, keep=False)
        running = asyncio.create_task(channel.run(big, take))
        job, _ = await fake.run()
        for _ in range(4):
            fake.send(STDOUT, job, bytes(WINDOW // 4))
        gate.release()
        gate.release()
        granted_for, payload = await fake.expect(CREDIT)
        assert (granted_for, struct.unpack("<I", payload)[0]) == (job, WINDOW // 2)
        assert taken == WINDOW // 2
        fake.send(STDOUT, job, bytes(WINDOW // 2))
        for _ in range(3):
            gate.release()
        await fake.expect(CREDIT)
        fake.exit(job, out=WINDOW * 3 // 2)
        ended = await running
        assert ended.stdout.total == taken == WINDOW * 3 // 2
        assert ended.stdout.head == b""

    with_executor(test)


def test_a_lost_connection_fails_every_job(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        running = [asyncio.create_task(channel.run(LS)) for _ in range(3)]
        await fake.run()
        fake.close()
        for one in running:
            with pytest.raises(ChannelLost, match="ended"):
                await one

    with_executor(test)


def test_cancelling_kills_and_waits_for_the_proof(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        running = asyncio.create_task(channel.run(LS))
        job, _ = await fake.run()
        running.cancel()
        killed, _ = await fake.expect(KILL)
        assert killed == job
        fake.send(STDOUT, job, b"last words")
        assert not running.done()
        fake.exit(job, -9, 2, out=10)
        with pytest.raises(asyncio.CancelledError):
            await running
        assert channel.alive
        assert channel.running == 0

    with_executor(test, kill_wait_s=30)


def test_an_executor_that_does_not_kill_is_cut_off(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        running = asyncio.create_task(channel.run(LS))
        await fake.run()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await channel.lost.wait()
        assert await fake.closed()

    with_executor(test, kill_wait_s=0.02, stuck_s=0.05)


def test_an_executor_that_misses_the_deadline_is_cut_off(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        running = asyncio.create_task(channel.run(Command(("x",), {}, timeout_s=0.05)))
        with pytest.raises(ChannelLost, match="deadline"):
            await running
        assert await fake.closed()
        assert not channel.alive

    with_executor(test, grace_s=0.05)


def test_timed_out_is_told(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        running = asyncio.create_task(channel.run(LS))
        job, _ = await fake.run()
        fake.exit(job, -9, 1)
        assert (await running).timed_out

    with_executor(test)


def test_stdin_is_sent_within_its_window(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        data = bytes(range(256)) * 2048  # 512 KiB: twice the window
        running = asyncio.create_task(channel.run(Command(("cat",), {}, stdin=data)))
        job, run = await fake.run()
        assert run.has_stdin
        got = b""
        while len(got) < 262144:
            _, chunk = await fake.expect(STDIN)
            got += chunk
        assert len(got) == 262144
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await fake.reader.readexactly(1)
        fake.send(STDIN_CREDIT, job, struct.pack("<I", 262144))
        while len(got) < len(data):
            _, chunk = await fake.expect(STDIN)
            got += chunk
        assert got == data
        assert await fake.expect(STDIN) == (job, b"")
        fake.exit(job)
        await running

    with_executor(test)


def test_stdin_ends_with_the_command(with_executor: WithExecutor) -> None:
    """A command that exits without reading leaves nothing waiting for credit."""

    async def test(channel, fake):
        running = asyncio.create_task(channel.run(Command(("true",), {}, stdin=bytes(10**6))))
        job, _ = await fake.run()
        fake.exit(job)
        assert (await running).status == 0

    with_executor(test)


def test_an_error_of_the_stdin_source_kills_the_command_and_reaches_the_caller(
    with_executor: WithExecutor,
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"half"
        raise Malformed("sha256: is not the content's")

    async def test(channel, fake):
        running = asyncio.create_task(channel.run(Command(("cat",), {}, stdin=chunks())))
        job, _ = await fake.run()
        assert await fake.expect(STDIN) == (job, b"half")
        killed, _ = await fake.expect(KILL)  # and no empty STDIN before it: the file must not look complete
        assert killed == job
        fake.exit(job, -9, 2)
        with pytest.raises(Malformed, match="sha256"):
            await running

    with_executor(test)


def test_an_error_of_the_output_sink_kills_the_command(with_executor: WithExecutor) -> None:
    async def test(channel, fake):
        async def broken(_stream: str, _data: bytes) -> None:
            raise ValueError("the caller is gone")

        running = asyncio.create_task(channel.run(LS, broken))
        job, _ = await fake.run()
        fake.send(STDOUT, job, b"x")
        await fake.expect(KILL)
        fake.exit(job, -9, 2)
        with pytest.raises(ValueError, match="gone"):
            await running

    with_executor(test)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        pytest.param(Command(("x" * 131072,), {}), TooLarge, id="argument"),
        pytest.param(Command(("x",) + ("y" * 100_000,) * 3, {}), TooLarge, id="all arguments"),
        pytest.param(Command(("x",), {"A": "y" * 300_000}), TooLarge, id="environment"),
        pytest.param(Command(("a\0b",), {}), CannotRun, id="NUL"),
    ],
)
def test_what_does_not_fit_a_frame_is_refused_and_harms_nobody(
    command: Command, error: type[Exception], with_executor: WithExecutor
) -> None:
    async def test(channel: ExecutorChannel, fake):
        with pytest.raises(error):
            await channel.run(command)
        running = asyncio.create_task(channel.run(LS))
        job, _ = await fake.run()
        fake.exit(job)
        await running

    with_executor(test)
