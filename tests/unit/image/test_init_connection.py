"""The executor's contract with its host: connection, malformed frames, nothing leaks. Outside Docker."""

import os
import time

import pytest
from executor_host import (
    CREDIT,
    EXIT,
    KILL,
    PING,
    PONG,
    RESET,
    RUN,
    SIGNAL,
    STDIN,
    eventually,
    frame,
    processes_with,
    run_payload,
    u32,
)

# --- the connection ---------------------------------------------------------------------------------


def test_hello_names_the_version_and_a_lost_connection_kills_and_redials(box, marker):
    box.sh(1, f"sleep {marker} &")
    box.start(2, "sh", "-c", f"setsid sleep {marker} & sleep {marker}")
    assert eventually(lambda: len(processes_with(f"sleep {marker}")) >= 3)
    version, pid = box.accept()
    assert version == 1
    assert pid > 0
    assert processes_with(marker) == []
    assert box.run(2, "echo", "new life").stdout == b"new life\n"


def test_it_finds_a_listener_that_comes_back(box):
    box.hang_up()
    box.listener.close()
    time.sleep(0.6)  # it dials in vain meanwhile, which nothing shows
    box.listen()
    box.accept()
    assert box.run(1, "true").status == 0


MALFORMED = {
    "length too small": b"\x04\0\0\0" + bytes(4),
    "length zero": bytes(9),
    "length too large": u32(5 + 262144 + 1) + b"\x05",
    "length enormous": b"\xff\xff\xff\xff",
    "unknown type": frame(99, 0),
    "a frame of its own": frame(EXIT, 0),
    "ping with a payload": frame(PING, 0, b"x"),
    "reset with a payload": frame(RESET, 0, b"x"),
    "run without anything": frame(RUN, 1),
    "run cut off": frame(RUN, 1, run_payload("true")[:-1]),
    "run too long": frame(RUN, 1, run_payload("true") + b"x"),
    "run without an end of cwd": frame(RUN, 1, run_payload("true")[:20] + b"/tmp"),
    "run with too many arguments": frame(RUN, 1, run_payload()[:22] + b"\xff\xff" + b"a\0"),
    "run twice": frame(RUN, 1, run_payload("sleep", "60")) * 2,
    "credit too short": frame(RUN, 1, run_payload("sleep", "60")) + frame(CREDIT, 1, b"\x01"),
    "credit too long": frame(RUN, 1, run_payload("sleep", "60")) + frame(CREDIT, 1, bytes(5)),
    "kill with a payload": frame(RUN, 1, run_payload("sleep", "60")) + frame(KILL, 1, b"x"),
    "signal without a number": frame(RUN, 1, run_payload("sleep", "60")) + frame(SIGNAL, 1),
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_frame_ends_the_connection_and_the_executor_redials(box, raw):
    box.send_bytes(raw)
    box.assert_hung_up()
    assert box.run(1, "echo", "alive").stdout == b"alive\n"


def test_an_unknown_flag_is_an_error_of_the_job_alone(box):
    payload = bytearray(run_payload("true"))
    payload[4] = 0x80
    box.send(RUN, 1, bytes(payload))
    assert box.wait(1).error == 22


@pytest.mark.parametrize("kind", [STDIN, KILL, CREDIT, SIGNAL])
def test_frames_for_an_ended_job_are_ignored(box, kind):
    box.run(1, "true")
    box.send(kind, 1, u32(1))
    box.send(PING, 2)
    assert box.frame() == (PONG, 2, b"")


def test_frames_may_arrive_in_any_portions(box):
    raw = frame(RUN, 1, run_payload("echo", "portions")) + frame(PING, 2)
    for i in range(len(raw)):
        box.send_bytes(raw[i : i + 1])
    assert box.wait(1).stdout == b"portions\n"


def test_a_host_that_only_sends_is_held_back_until_it_reads(box):
    """Answers have a bounded place: the executor stops taking frames instead of growing."""
    box._connection.settimeout(0.5)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 5_000_000:
            sent += box._connection.send(frame(PING, 1) * 1000)
    box._connection.settimeout(20)
    for _ in range(sent // 9):
        assert box.frame() == (PONG, 1, b"")


# --- nothing leaks ----------------------------------------------------------------------------------


def test_a_thousand_commands_leak_nothing(plain_box):
    pid = plain_box.process.pid
    for job in range(50):
        plain_box.sh(job, "echo x; true &", limit=1)
    before = resources(pid)
    for job in range(1000):
        assert plain_box.run(job, "/bin/echo", "hello", limit=2).status == 0
    for job in range(100):
        plain_box.run(job, "no-such-command")
    plain_box.reset()
    after = resources(pid)
    assert after["descriptors"] == before["descriptors"]
    assert after["children"] == 0
    assert after["memory_kb"] <= before["memory_kb"] + 64


def resources(pid):
    with open(f"/proc/{pid}/status") as status:
        memory = next(line for line in status if line.startswith("VmRSS"))
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return {
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "children": len(children.read().split()),
            "memory_kb": int(memory.split()[1]),
        }


def test_memory_is_bounded_whatever_the_host_and_the_commands_do(plain_box):
    for job in range(32):
        plain_box.start(job, "yes", stdin=True)
        plain_box.send(STDIN, job, b"x" * 100_000)
    time.sleep(1)
    # Its two connection buffers, one stdin queue per job, and itself.
    assert resources(plain_box.process.pid)["memory_kb"] < 4096 + 32 * 256
