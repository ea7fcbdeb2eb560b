"""The executor's contract, frame by frame (image/init/wire.h), outside Docker: commands, stdin, output."""

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
    STDERR_TAIL,
    STDIN,
    STDIN_CREDIT,
    STDOUT,
    STDOUT_TAIL,
    u32,
)

WINDOW = 262144
TAIL = 16384
KILLED = 2


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
