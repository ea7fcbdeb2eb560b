"""The executor's contract about ends: kills, timeouts, survivors, a box that fights them. Outside Docker."""

import os
import signal
import time

import pytest
from executor_host import (
    EXIT,
    KILL,
    PONG,
    RESET,
    RUN,
    SIGNAL,
    STDOUT,
    eventually,
    frame,
    processes_with,
    run_payload,
    u32,
)

TIMED_OUT, KILLED = 1, 2


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
    # The end is told before the supervisor is gone, whose child it still is for a moment.
    assert eventually(lambda: parent_of(survivor) == plain_box.process.pid)


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
