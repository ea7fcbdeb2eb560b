"""exec on a real container, through the whole corridor."""

from __future__ import annotations

import asyncio
import json

import pytest

from beige.errors import Cancelled, Malformed, NotFound, Overloaded, TooLarge
from beige.messages.sandbox import ExecRequest

pytestmark = pytest.mark.docker

SLEEPERS = "setsid sleep 7771 & (setsid setsid sleep 7772 &) ; nohup sleep 7773 >/dev/null 2>&1 & sleep 7774"


async def gone(bus, tools, pattern="sleep 777"):
    """Nothing of the command is left: waits for it, fails if it never happens."""
    async with asyncio.timeout(10):
        while True:
            found = await tools.bash(bus, f"pgrep -f '^{pattern}'")
            if found.exit_code == 1:
                return
            await asyncio.sleep(0.02)


def test_stdout_stderr_and_exit_code_are_apart(house, tools):
    async def test(bus):
        result = await tools.bash(bus, "echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        assert (result.stdout_bytes, result.stderr_bytes) == (4, 4)

    house.operate(test)


def test_an_argument_vector_is_not_parsed(house):
    async def test(bus):
        argv = ["printf", "%s|", "a b", "$HOME", "*", "'\"", "", "new\nline", "-n"]
        result = await bus.call("sandbox.exec", ExecRequest(argv=argv), agent="travel")
        assert result.stdout == b"a b|$HOME|*|'\"||new\nline|-n|"

    house.operate(test)


def test_stdin_and_binary_output(house, tools):
    data = bytes(range(256)) * 1000

    async def test(bus):
        result = await tools.bash(bus, "cat", stdin=data)
        assert result.stdout == data
        assert (await tools.bash(bus, "cat")).stdout == b""

    house.operate(test)


def test_a_signal_is_told_as_a_shell_does(house, tools):
    async def test(bus):
        assert (await tools.bash(bus, "kill -TERM $$")).exit_code == 143

    house.operate(test)


def test_the_environment_holds_nothing_of_the_host(house, tools):
    async def test(bus):
        env = dict(line.split("=", 1) for line in (await tools.out(bus, "env")).splitlines())
        assert set(env) - {"PWD", "SHLVL", "_"} == {
            "PATH", "HOME", "LANG", "DENO_DIR", "DENO_NO_UPDATE_CHECK", "BEIGE_AGENT", "BEIGE_CALL_TOKEN",
        }  # fmt: skip
        assert env["BEIGE_AGENT"] == "travel"
        everywhere = await tools.bash(bus, "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null")
        assert tools.CANARY.encode() not in everywhere.stdout

    house.operate(test)


def test_each_call_gets_its_own_token(house, tools):
    async def test(bus):
        tokens = {await tools.out(bus, "echo $BEIGE_CALL_TOKEN") for _ in range(3)}
        assert len(tokens) == 3

    house.operate(test)


def test_a_variable_may_be_added_but_not_the_token(house, tools):
    async def test(bus):
        assert (await tools.bash(bus, "echo $FOO", env={"FOO": "a b"})).stdout == b"a b\n"
        with pytest.raises(Malformed, match="BEIGE_CALL_TOKEN"):
            await tools.bash(bus, "true", env={"BEIGE_CALL_TOKEN": "x"})

    house.operate(test)


def test_a_timeout_kills_the_whole_tree(house, tools):
    async def test(bus):
        result = await tools.bash(bus, f"echo before; {SLEEPERS}", timeout_s=0.3)
        assert (result.exit_code, result.timed_out, result.stdout) == (124, True, b"before\n")
        await gone(bus, tools)

    house.operate(test)


def test_cancelling_kills_the_whole_tree(house, tools):
    async def test(bus):
        body = ExecRequest(f"echo started; {SLEEPERS}")
        async with bus.open("sandbox.exec", body, agent="travel") as stream:
            async for item in stream:
                assert item.data == b"started\n"
                break
        await gone(bus, tools)

    house.operate(test)


def test_the_callers_death_kills_the_whole_tree(house, tools):
    async def test(bus):
        async def abandoned():
            await tools.bash(bus, SLEEPERS)

        task = asyncio.create_task(abandoned())
        async with asyncio.timeout(10):
            while (await tools.bash(bus, "pgrep -fc '^sleep 777'")).stdout.strip() != b"4":
                await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, Cancelled)):
            await task
        await gone(bus, tools)

    house.operate(test)


def test_the_deadline_of_the_call_kills_too(house, tools):
    async def test(bus):
        with pytest.raises(Exception, match=r"deadline|time") as caught:
            await bus.call("sandbox.exec", ExecRequest(SLEEPERS), agent="travel", ttl_s=0.5)
        assert caught.value.code == "deadline_exceeded"
        await gone(bus, tools)

    house.operate(test)


def test_too_much_output_keeps_head_and_tail_with_a_notice(house, tools):
    async def test(bus):
        command = "echo first; yes | head -c 5000000; echo last; yes err | head -c 300000 >&2"
        result = await tools.bash(bus, command)
        assert result.stdout_bytes == 5_000_000 + 11
        assert result.stdout.startswith(b"first\ny\n")
        assert result.stdout.endswith(b"y\nlast\n")
        assert f"… [{result.stdout_cut} bytes left out] …".encode() in result.stdout
        notice = len(f"\n… [{result.stdout_cut} bytes left out] …\n".encode())
        assert len(result.stdout) - notice + result.stdout_cut == result.stdout_bytes
        assert result.stderr_bytes == 300_000
        assert result.stderr_cut == 300_000 - 256 * 1024 - 16 * 1024

    house.operate(test)


def test_the_audit_log_counts_what_was_produced(house, tools):
    async def test(bus):
        await tools.bash(bus, "yes | head -c 1000000; exit 9")

    house.operate(test)
    last = json.loads(house.home.audit_log.read_text().splitlines()[-1])
    assert (last["phase"], last["exitCode"], last["outputBytes"]) == ("finished", 9, 1_000_000)


def test_live_output_arrives_while_the_command_runs(house):
    async def test(bus):
        body = ExecRequest("echo one; read line; echo two >&2", stdin=b"x\n")
        async with bus.open("sandbox.exec", body, agent="travel") as stream:
            got = [(item.stream, item.data) async for item in stream]
            result = await stream.result()
        assert got == [("stdout", b"one\n"), ("stderr", b"two\n")]
        assert (result.stdout, result.stderr) == (b"one\n", b"two\n")

    house.operate(test)


def test_a_caller_that_does_not_read_stops_the_command(house, tools):
    """Back-pressure reaches the command's pipe: 440,000 bytes are more than an item, the executor's
    credit and the pipe hold."""

    async def test(bus):
        body = ExecRequest("rm -f finished; head -c 440000 /dev/zero; touch finished")
        options = {"agent": "wide", "window_items": 1, "window_bytes": 1000, "ttl_s": 60}
        async with bus.open("sandbox.exec", body, **options) as stream:
            look = (
                "until pgrep -x head >/dev/null; do sleep 0.05; done; sleep 0.5; pgrep -x head; ls finished"
            )
            stopped = await tools.bash(bus, look, "wide")
            assert stopped.stdout.strip().isdigit()
            assert b"finished" in stopped.stderr
            total = sum([len(item.data) async for item in stream])
            result = await stream.result()
        assert total == result.stdout_bytes == 440_000
        assert await tools.out(bus, "ls finished", "wide") == "finished\n"

    house.operate(test)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        pytest.param({"argv": ["no-such-program"]}, NotFound, "no-such-program", id="no such program"),
        pytest.param({"command": "true", "cwd": "/nope"}, NotFound, "/nope", id="no such directory"),
        pytest.param({"command": "true", "cwd": "nope"}, NotFound, "/workspace/nope", id="relative"),
        pytest.param({"command": "#" * 140_000}, TooLarge, "131071", id="long command"),
        pytest.param({}, Malformed, "command", id="nothing to run"),
    ],
)
def test_what_can_not_be_run_is_an_error_not_a_result(fields, error, words, house):
    async def test(bus):
        with pytest.raises(error, match=words):
            await bus.call("sandbox.exec", ExecRequest(**fields), agent="travel")

    house.operate(test)


def test_a_memory_hog_is_killed_and_told_why(house, tools):
    async def test(bus):
        hog = "python3 -c 'b = []\nwhile True: b.append(bytearray(16 << 20))'"
        result = await tools.bash(bus, hog)
        assert result.exit_code == 137
        assert b"memory limit of 512m" in result.stderr
        result = await tools.bash(bus, "kill -9 $$")
        assert (result.exit_code, result.stderr) == (137, b"")

    house.operate(test)


def test_a_fork_bomb_ends_with_its_timeout_and_disturbs_no_other_agent(house, tools):
    async def test(bus):
        await tools.out(bus, "true", "other")
        bomb = asyncio.create_task(tools.bash(bus, "bomb() { bomb | bomb & }; bomb; sleep 60", timeout_s=3))
        meanwhile = 0
        while not bomb.done():
            await tools.out(bus, "true", "other")
            meanwhile += not bomb.done()
        assert (await bomb).exit_code in (124, 137, 254, 1)
        assert meanwhile, "the other was answered only when the bomb was over"
        async with asyncio.timeout(20):
            while True:
                try:
                    count = await tools.out(bus, "ls -d /proc/[0-9]* | wc -l")
                except (Overloaded, AssertionError):
                    continue
                if int(count) < 10:
                    break

    house.operate(test)


def test_one_agents_sleepers_leave_room_for_the_other(house, tools):
    """An agent may have 32 calls running; another agent's first is not refused for that."""

    async def test(bus):
        sleepers = {asyncio.create_task(tools.bash(bus, "sleep 7775")) for _ in range(40)}
        refused: set = set()
        async with asyncio.timeout(20):
            while len(refused) < 8:
                done, sleepers = await asyncio.wait(sleepers, return_when=asyncio.FIRST_COMPLETED)
                refused |= done
        assert {type(one.exception()) for one in refused} == {Overloaded}
        with pytest.raises(Overloaded, match="32"):
            await tools.out(bus, "true")
        assert await tools.out(bus, "echo fine", "other") == "fine\n"
        for sleeper in sleepers:
            sleeper.cancel()
        await asyncio.gather(*sleepers, return_exceptions=True)
        async with asyncio.timeout(10):
            while True:
                try:
                    await tools.out(bus, "true")
                    break
                except Overloaded:
                    await asyncio.sleep(0.02)
        await gone(bus, tools)

    house.operate(test)


def test_a_background_process_survives_its_command_and_ends_with_remove(house, tools):
    async def test(bus):
        await tools.out(bus, "nohup setsid sleep 7776 >/dev/null 2>&1 & echo ok")
        assert (await tools.bash(bus, "pgrep -f '^sleep 7776'")).exit_code == 0

    house.operate(test)
