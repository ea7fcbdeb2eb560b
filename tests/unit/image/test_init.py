"""The executor's contract, frame by frame (image/init/wire.h), outside Docker."""

import os
import signal
import struct
import time

import pytest
from executor_host import (
    CREDIT,
    ERROR,
    EXIT,
    KILL,
    PING,
    PONG,
    RESET,
    RUN,
    SIGNAL,
    STDERR_TAIL,
    STDIN,
    STDIN_CREDIT,
    STDOUT,
    STDOUT_TAIL,
    eventually,
    processes_with,
    run_payload,
)

WINDOW = 262144
TAIL = 16384
TIMED_OUT, KILLED = 1, 2


def u32(value):
    return struct.pack("<I", value)


# --- commands ---------------------------------------------------------------------------------------


def test_streams_are_separate_and_the_exit_code_is_the_commands(box):
    ended = box.sh(1, "echo out; echo err >&2; exit 3")
    assert (ended.status, ended.flags) == (3, 0)
    assert (ended.stdout, ended.stderr) == (b"out\n", b"err\n")
    assert (ended.stdout_total, ended.stderr_total) == (4, 4)


def test_death_by_a_signal_is_a_negative_status(box):
    assert box.sh(1, "kill -TERM $$").status == -signal.SIGTERM


@pytest.mark.parametrize(
    ("argv", "cwd", "errno", "step"),
    [
        (["no-such-command"], b"/", 2, "exec"),
        (["/etc/passwd"], b"/", 13, "exec"),
        (["true"], b"/no/such/directory", 2, "chdir"),
        (["true"], b"", 2, "chdir"),
        ([], b"/", 22, "run"),
    ],
    ids=["missing", "not executable", "no directory", "empty directory", "no command"],
)
def test_a_command_that_cannot_start_is_an_error_with_its_step(box, argv, cwd, errno, step):
    ended = box.run(1, *argv, cwd=cwd)
    assert ended.order == [ERROR]
    assert ended.error == errno
    assert ended.error_text.startswith(f"{step}: ")


def test_the_environment_is_exactly_what_was_sent_and_its_path_is_searched(box):
    ended = box.run(1, "env", env={"PATH": "/usr/bin:/bin", "A": "1", "EMPTY": ""})
    assert sorted(ended.stdout.split()) == [b"A=1", b"EMPTY=", b"PATH=/usr/bin:/bin"]
    assert box.run(2, "env", env={"PATH": "/nowhere"}).error == 2


def test_arguments_arrive_byte_for_byte(box):
    ended = box.run(1, "printf", "[%s]", b"", b"two words", "ünï".encode(), b"\xff\xfe\n", b"$HOME'\"")
    assert ended.stdout == b"[][two words][" + "ünï".encode() + b"][\xff\xfe\n][$HOME'\"]"


def test_the_command_starts_clean(box):
    """Own session, no blocked or ignored signal, first to go when memory runs out."""
    ended = box.sh(
        1,
        "grep -E '^Sig(Blk|Ign)' /proc/self/status | cut -f2; cat /proc/self/oom_score_adj;"
        " [ $(ps -o sid= -p $$) = $$ ] && echo leader; pwd; readlink /proc/self/fd/0",
        cwd=b"/usr",
    )
    assert ended.stdout.split() == [b"0" * 16, b"0" * 16, b"1000", b"leader", b"/usr", b"/dev/null"]


def test_the_command_has_no_descriptor_but_its_three_streams(box):
    """Asked without a shell, which has pipes of its own; the fourth is the directory that ls reads."""
    box.start(1, "sleep", "60", stdin=True)
    ended = box.run(2, "ls", "-l", "/proc/self/fd", stdin=True)
    links = dict(line.split()[-3::2] for line in ended.stdout.decode().splitlines()[1:])
    assert set(links) == {"0", "1", "2", "3"}
    assert [links[fd].partition(":")[0] for fd in "012"] == ["pipe"] * 3
    assert links["3"].endswith("/fd")


def test_many_commands_run_at_once_and_the_65th_is_told_to_wait(box):
    for job in range(64):
        box.start(job, "sleep", "60")
    refused = box.run(64, "true")
    assert (refused.error, refused.order) == (11, [ERROR])
    box.send(KILL, 5)
    assert box.wait(5).flags == KILLED
    assert box.run(64, "true").status == 0


def test_jobs_do_not_mix(box):
    for job in range(1, 30):
        box.start(job, "sh", "-c", f"echo {job}; exit {job}")
    for job in range(1, 30):
        ended = box.wait(job)
        assert (ended.status, ended.stdout) == (job, f"{job}\n".encode())


def test_ping_is_answered_while_jobs_run(box):
    box.start(1, "sleep", "60")
    box.send(PING, 77)
    assert box.frame() == (PONG, 77, b"")


# --- stdin ------------------------------------------------------------------------------------------


def test_stdin_reaches_the_command_and_ends(box):
    box.start(1, "cat", stdin=True)
    box.send(STDIN, 1, b"hello ")
    box.send(STDIN, 1, b"there")
    box.send(STDIN, 1)
    assert box.wait(1).stdout == b"hello there"


def test_stdin_credit_comes_back_as_the_command_reads(box):
    sent, window, total = 0, WINDOW, 3 * WINDOW + 17
    box.start(1, "wc", "-c", stdin=True)
    while sent < total:
        while window == 0:
            kind, payload = box.frame_for(1)
            assert kind == STDIN_CREDIT
            window += struct.unpack("<I", payload)[0]
        assert window <= WINDOW
        size = min(window, 50_000, total - sent)
        box.send(STDIN, 1, b"x" * size)
        sent, window = sent + size, window - size
    box.send(STDIN, 1)
    assert box.wait(1).stdout.split() == [str(total).encode()]


def test_a_command_that_does_not_read_stalls_nobody_and_gets_no_credit(box):
    box.start(1, "sleep", "60", stdin=True)
    box.send(STDIN, 1, b"x" * WINDOW)
    assert box.run(2, "echo", "free").stdout == b"free\n"
    # What the pipe itself holds may have been credited, the rest may not.
    credited = 0
    while not box.is_quiet(0.2):
        kind, payload = box.frame_for(1)
        assert kind == STDIN_CREDIT
        credited += struct.unpack("<I", payload)[0]
    assert credited <= 65536


def test_stdin_beyond_the_window_ends_the_connection(box):
    box.start(1, "sleep", "60", stdin=True)
    box.send(STDIN, 1, b"x" * WINDOW)
    box.send(STDIN, 1, b"x" * WINDOW)
    box.assert_hung_up()


def test_stdin_for_a_command_that_closed_it_is_swallowed_with_credit(box):
    box.start(1, "sh", "-c", "exec 0<&-; echo closed; sleep 60", stdin=True)
    assert box.frame_for(1) == (STDOUT, b"closed\n")
    credited = 0
    for _ in range(8):
        box.send(STDIN, 1, b"x" * (WINDOW // 2))
        while credited < WINDOW // 2:
            kind, payload = box.frame_for(1)
            assert kind == STDIN_CREDIT
            credited += struct.unpack("<I", payload)[0]
        credited -= WINDOW // 2


# --- limits and credit ------------------------------------------------------------------------------


def test_output_beyond_the_limit_is_counted_and_its_end_kept(box):
    ended = box.sh(1, "seq 1 100000; echo the end", limit=1000)
    everything = "".join(f"{i}\n" for i in range(1, 100001)).encode() + b"the end\n"
    assert ended.stdout == everything[:1000]
    assert ended.stdout_tail == everything[-TAIL:]
    assert ended.stdout_total == len(everything)
    assert ended.order[-2:] == [STDOUT_TAIL, EXIT]


def test_the_tail_never_repeats_what_was_forwarded(box):
    ended = box.sh(1, "printf 0123456789; printf abcde >&2", limit=7)
    assert (ended.stdout, ended.stdout_tail) == (b"0123456", b"789")
    assert (ended.stderr, ended.stderr_tail) == (b"abcde", b"")


def test_a_limit_of_zero_forwards_nothing_and_keeps_both_tails(box):
    ended = box.sh(1, "echo out; echo err >&2", limit=0, credit=0)
    assert ended.order == [STDOUT_TAIL, STDERR_TAIL, EXIT]
    assert (ended.stdout_tail, ended.stderr_tail) == (b"out\n", b"err\n")


def test_no_more_is_sent_than_there_is_credit_for(box):
    box.start(1, "head", "-c", "5000", "/dev/zero", credit=1000)
    assert box.frame_for(1) == (STDOUT, bytes(1000))
    assert box.is_quiet(0.2)
    box.send(CREDIT, 1, u32(1500))
    assert box.frame_for(1) == (STDOUT, bytes(1500))
    assert box.is_quiet(0.2)
    box.send(CREDIT, 1, u32(1 << 20))
    ended = box.wait(1)
    assert (ended.status, len(ended.stdout), ended.stdout_total) == (0, 2500, 5000)


def test_discarding_beyond_the_limit_costs_no_credit(box):
    ended = box.run(1, "head", "-c", "1000000", "/dev/zero", limit=100, credit=100)
    assert (len(ended.stdout), ended.stdout_total, len(ended.stdout_tail)) == (100, 1_000_000, TAIL)


def test_without_credit_the_command_is_held_back(box):
    box.start(1, "sh", "-c", "yes | head -c 10000000 && echo done >&2", credit=10)
    assert box.frame_for(1) == (STDOUT, b"y\n" * 5)
    assert box.is_quiet(0.3)
    box.send(KILL, 1)
    ended = box.wait(1)
    assert ended.flags == KILLED
    assert ended.stdout_total < 300_000  # pipes, not ten million


def test_a_host_that_does_not_read_holds_the_commands_back_and_loses_nothing(box):
    for job in range(1, 5):
        box.start(job, "sh", "-c", "seq 1 200000")
    time.sleep(0.5)
    expected = "".join(f"{i}\n" for i in range(1, 200001)).encode()
    assert [box.wait(job).stdout == expected for job in range(1, 5)] == [True] * 4


# --- killing ----------------------------------------------------------------------------------------

ESCAPES = {
    "child": "sleep {m} & sleep {m}",
    "setsid": "setsid sleep {m} & sleep {m}",
    "daemon": "(setsid sh -c 'sleep {m} & sleep {m}' &) ; sleep {m}",
    "deep": "sh -c \"sh -c 'trap : TERM HUP; (sleep {m} &) ; sleep {m}' & sleep {m}\"; sleep {m}",
    "ignores signals": "trap '' TERM HUP INT; nohup setsid sleep {m} & sleep {m}",
}


@pytest.mark.parametrize("script", ESCAPES.values(), ids=ESCAPES)
def test_kill_takes_the_whole_tree_and_no_other_job(box, marker, script):
    box.start(1, "sleep", "60")
    box.start(2, "sh", "-c", script.format(m=marker))
    assert eventually(lambda: len(processes_with(f"sleep {marker}")) >= 2)
    box.send(KILL, 2)
    ended = box.wait(2)
    assert (ended.status, ended.flags) == (-signal.SIGKILL, KILLED)
    assert processes_with(marker) == []
    assert box.is_quiet(0.1), "the other job must run on"
    box.send(KILL, 1)
    assert box.wait(1).flags == KILLED


@pytest.mark.parametrize("script", ESCAPES.values(), ids=ESCAPES)
def test_a_timeout_takes_the_whole_tree(box, marker, script):
    started = time.monotonic()
    ended = box.sh(1, script.format(m=marker), timeout_ms=300)
    assert (ended.status, ended.flags) == (-signal.SIGKILL, TIMED_OUT)
    assert time.monotonic() - started >= 0.3, "not before its time"
    assert processes_with(marker) == []


def test_kill_right_behind_run_leaves_nothing(box, marker):
    for job in range(50):
        box.send_bytes(
            frame(RUN, job, run_payload("sh", "-c", f"setsid sleep {marker} & sleep {marker}"))
            + frame(KILL, job)
        )
        assert box.wait(job).flags == KILLED
    assert processes_with(marker) == []


def frame(kind, job, payload=b""):
    return struct.pack("<IBI", 5 + len(payload), kind, job) + payload


def test_kill_needs_no_credit(box):
    box.start(1, "yes", credit=0)
    time.sleep(0.1)
    box.send(KILL, 1)
    ended = box.wait(1)
    assert (ended.status, ended.flags, ended.stdout) == (-signal.SIGKILL, KILLED, b"")
    assert ended.stdout_total > 0


def test_a_signal_reaches_the_process_group(box):
    # Not dash: it loses a signal that arrives while it returns from vfork.
    box.start(1, "bash", "-c", "trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.05; done")
    assert box.frame_for(1) == (STDOUT, b"ready\n")
    box.send(SIGNAL, 1, u32(signal.SIGUSR1))
    ended = box.wait(1)
    assert (ended.status, ended.stdout, ended.flags) == (9, b"caught\n", 0)


@pytest.mark.parametrize("signo", [0, 65, 0xFFFFFFFF])
def test_a_number_that_is_no_signal_is_ignored(box, signo):
    box.start(1, "sleep", "0.2")
    box.send(SIGNAL, 1, u32(signo))
    assert box.wait(1).status == 0


# --- survivors --------------------------------------------------------------------------------------


def test_a_background_process_outlives_its_command_until_reset(box, marker):
    ended = box.sh(1, f"sleep {marker} & echo started")
    assert (ended.status, ended.stdout) == (0, b"started\n")
    (survivor,) = processes_with(marker)  # it holds the pipes: the exit did not wait for it
    assert box.run(2, "true").status == 0
    assert processes_with(marker) == [survivor]
    box.reset()
    assert processes_with(marker) == []


def test_a_survivor_becomes_the_executors_child(plain_box, marker):
    plain_box.sh(1, f"sleep {marker} &")
    (survivor,) = processes_with(marker)
    assert parent_of(survivor) == plain_box.process.pid


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def test_a_survivor_that_floods_the_pipe_does_not_hold_the_exit(box):
    ended = box.sh(1, "yes & sleep 0.1; exit 4", limit=1000)
    assert ended.status == 4
    assert box.run(2, "true").status == 0


def test_output_written_before_the_exit_is_complete(box):
    for job in range(20):
        assert len(box.sh(job, "sleep 9 & head -c 60000 /dev/zero").stdout) == 60000


def test_reset_ends_every_job_before_it_is_answered(box, marker):
    for job in range(1, 4):
        box.start(job, "sh", "-c", f"setsid sleep {marker} & sleep {marker}", credit=0)
    box.send(RESET, 9)
    kinds = [box.frame() for _ in range(4)]
    assert sorted(job for kind, job, _ in kinds[:3] if kind == EXIT) == [1, 2, 3]
    assert kinds[3] == (PONG, 9, b"")
    assert processes_with(marker) == []
    assert box.run(1, "echo", "again").stdout == b"again\n"


# --- a hostile box ----------------------------------------------------------------------------------


def test_a_killed_supervisor_ends_its_job_and_its_orphans_but_no_other_job(plain_box, marker):
    plain_box.start(1, "sleep", "60")
    plain_box.start(2, "sh", "-c", f"setsid sleep {marker} & sleep {marker}")
    assert eventually(lambda: len(processes_with(f"sleep {marker}")) == 3)
    os.kill(supervisor_above(processes_with(marker), plain_box.process.pid), signal.SIGKILL)
    ended = plain_box.wait(2)
    assert (ended.status, ended.flags) == (-signal.SIGKILL, 0)
    assert eventually(lambda: processes_with(marker) == [])
    assert plain_box.is_quiet(0.1)


def test_a_stopped_supervisor_does_not_save_its_tree(plain_box, marker):
    plain_box.start(1, "sh", "-c", f"setsid sleep {marker} & sleep {marker}", timeout_ms=1000)
    assert eventually(lambda: len(processes_with(f"sleep {marker}")) == 3)
    os.kill(supervisor_above(processes_with(marker), plain_box.process.pid), signal.SIGSTOP)
    ended = plain_box.wait(1)
    assert (ended.status, ended.flags) == (-signal.SIGKILL, TIMED_OUT)
    assert processes_with(marker) == []


def supervisor_above(pids, init):
    """The ancestor of `pids` right below the executor."""
    pid = pids[0]
    while parent_of(pid) != init:
        pid = parent_of(pid)
    return pid


def test_a_supervisor_shrugs_off_signals_it_can_block(plain_box, marker):
    plain_box.start(1, "sleep", marker)
    assert eventually(lambda: processes_with(f"sleep {marker}"))
    supervisor = supervisor_above(processes_with(marker), plain_box.process.pid)
    for signo in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD):
        os.kill(supervisor, signo)
    assert plain_box.is_quiet(0.2)
    plain_box.send(KILL, 1)
    assert plain_box.wait(1).flags == KILLED


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
