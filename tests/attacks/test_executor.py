"""Threat: an agent that attacks the executor, the process in its container that starts its commands.

Everything in the container runs as the same uid, so nothing but the kernel's rules and the executor's
own care protect it. A victim in the agent's hands, a plain `sleep`, is the control.
"""

from __future__ import annotations

import os

import pytest

from beige.messages.sandbox import ExecRequest

pytestmark = pytest.mark.docker


def alive(gateway):
    """The executor is the one it was, serves, and so do the others'."""
    return gateway.inspect("travel")["State"]["Pid"], gateway.other.out("echo served")


DIAL = """
import socket, struct
s = socket.socket(socket.AF_UNIX)
s.settimeout(20)
s.connect({path!r})
try:
    s.sendall(struct.pack("<IBI", 13, 20, 0) + struct.pack("<II", 1, 1))  # HELLO: version 1, pid 1
    s.sendall(b"{{}}\\n")
    answer = s.recv(1)
except (BrokenPipeError, ConnectionResetError):
    answer = b""
print("answered" if answer else "hung up")
"""


def test_an_agent_that_dials_the_executors_socket_is_turned_away(gateway):
    """It says exactly what the executor says. Told by the kernel: its pid is not the executor's."""
    before = alive(gateway)
    for _ in range(3):
        assert gateway.travel.python(DIAL.format(path="/run/beige/exec.sock")).out == "hung up\n"
    assert gateway.travel.python(DIAL.format(path="/run/beige/gateway.sock")).out == "answered\n", "control"
    assert alive(gateway) == before


SIGNALS = "KILL TERM INT HUP QUIT STOP TSTP SEGV ABRT USR1 USR2 CHLD PIPE ALRM"


@pytest.mark.parametrize("signal", SIGNALS.split())
def test_no_signal_ends_or_stops_it(gateway, signal):
    before = alive(gateway)
    assert gateway.travel.out(f"kill -{signal} 1; echo sent") == "sent"
    assert gateway.travel.out("echo served") == "served"
    assert alive(gateway) == before


def test_a_signal_does_end_another_process_control(gateway):
    assert gateway.travel.sh("sleep 60 & kill -KILL $!; wait $!; echo $?").out == "137\n"


LOOKS = {
    "environment": "tr '\\0' '\\n' < /proc/{pid}/environ | grep -c ^PATH=",
    "descriptors": "ls /proc/{pid}/fd | grep -c .",
    "memory map": "head -1 /proc/{pid}/maps | grep -c .",
    "program": "readlink /proc/{pid}/exe | grep -c .",
    "directory": "readlink /proc/{pid}/cwd | grep -c .",
    "memory": "test -r /proc/{pid}/mem && dd if=/proc/{pid}/mem bs=1 count=0 2>/dev/null && echo 1",
    "each descriptor": "for f in 0 1 2 3 4 5 6 7; do readlink /proc/{pid}/fd/$f; done | grep -c .",
}

STARTED = 'until [ "$(readlink /proc/$!/exe)" = "$(readlink -f "$(command -v sleep)")" ]; do :; done'
"""Before its exec a process shows the shell's exe, and for a moment no environment."""


@pytest.mark.parametrize("command", LOOKS.values(), ids=LOOKS)
def test_it_can_not_be_looked_into(gateway, command):
    victim = gateway.travel.sh(f"sleep 5 & {STARTED}; {command.format(pid='$!')}; kill $!")
    assert int(victim.out.split()[0]) > 0, "control"
    for pid in ("1", "$PPID"):
        ran = gateway.travel.sh(command.format(pid=pid) + " 2>/dev/null; true")
        assert ran.out in ("", "0\n"), pid


FORGE = """
import ctypes, fcntl, os, signal, socket, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
TERM, QUEUE, TGKILL, PIDFD = signal.SIGTERM, {numbers[0]}, {numbers[1]}, {numbers[2]}
def siginfo(sender):
    return struct.pack("<iiiiii", TERM, 0, -1, 0, sender, 0).ljust(128, b"\\0")  # si_code SI_QUEUE
def queue(pid): libc.syscall(QUEUE, pid, TERM, siginfo(0))
def pidfd(pid): libc.syscall(PIDFD, os.pidfd_open(pid), TERM, siginfo(0), 0)
def sigio(pid):
    a, b = socket.socketpair()
    fcntl.fcntl(a, fcntl.F_SETOWN, pid)
    fcntl.fcntl(a, 10, TERM)  # F_SETSIG
    fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    b.send(b"x")
    b.close()
def full_queue(pid):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    while libc.syscall(QUEUE, os.getpid(), signal.SIGRTMIN, siginfo(os.getpid())) == 0:
        pass
    libc.syscall(TGKILL, pid, pid, TERM)
victim = subprocess.Popen(["sleep", "60"])
{attack}(victim.pid)
print(victim.wait(), flush=True)
{attack}(1)
"""
"""Each sends a SIGTERM whose sender reads as 0, which is what PID 1 sees of the host's own."""
NUMBERS = {"x86_64": (129, 234, 424), "aarch64": (138, 131, 424)}[os.uname().machine]


@pytest.mark.parametrize("attack", ["queue", "pidfd", "sigio", "full_queue"])
def test_a_forged_signal_does_not_end_it(gateway, attack):
    before = alive(gateway)
    ran = gateway.travel.python(FORGE.format(attack=attack, numbers=NUMBERS))
    assert (ran.code, ran.out) == (0, "-15\n"), "control: the victim is ended by the same"
    assert gateway.travel.out("echo served") == "served"
    assert alive(gateway) == before


LIMITS = """
import resource, subprocess
victim = subprocess.Popen(["sleep", "60"])
mine = {own} or victim.pid
try:
    resource.prlimit(mine, resource.{limit}, (1, 1))
except PermissionError:
    print("refused")
else:
    print("lowered")
victim.kill()
"""


@pytest.mark.parametrize("limit", ["RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_NPROC"])
def test_its_limits_can_not_be_lowered(gateway, careless, limit):
    """An executor without descriptors, time or processes would serve nobody."""
    before = alive(gateway)
    assert careless.python(LIMITS.format(own=0, limit=limit)).out == "lowered\n", "control"
    assert gateway.travel.python(LIMITS.format(own=1, limit=limit)).out == "refused\n"
    assert gateway.travel.out(
        "ulimit -n 512; ulimit -n; prlimit --pid 1 --nofile -o SOFT --noheadings"
    ).split()
    assert alive(gateway) == before


def test_it_does_not_become_the_first_victim_of_the_memory_killer(gateway):
    """The agent may raise the executor's oom score only if it may write there."""
    write = "echo 1000 2>/dev/null > /proc/{0}/oom_score_adj; cat /proc/{0}/oom_score_adj"
    assert gateway.travel.sh(f"sleep 5 & {write.format('$!')}; kill $!").out == "1000\n", "control"
    assert gateway.travel.sh(write.format(1)).out == "500\n"


def test_killed_supervisors_free_nobody(gateway):
    """Each command runs below a supervisor of the executor; the agent can kill it, and ends only itself."""
    before = alive(gateway)
    ran = gateway.travel.sh("(setsid sleep 7531 &); kill -KILL $PPID; sleep 7531")
    assert ran.code == 137
    assert gateway.travel.sh("pkill -KILL beige-job; sleep 60").code == 137
    assert gateway.travel.out("pgrep -c -f 'sleep 753[1]' || true") == "0"
    assert alive(gateway) == before


def test_killing_all_one_can_kills_oneself(gateway):
    before = alive(gateway)
    assert gateway.travel.sh("kill -KILL -1; sleep 60").code == 137
    assert gateway.travel.out("echo served") == "served"
    assert alive(gateway) == before


def test_a_call_ends_in_time_whatever_its_command_leaves(gateway):
    """Output held open by a process that left its session and its group does not hold the answer."""
    leave = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(20)"
    body = ExecRequest(f"python3 -c '{leave}'; echo done", timeout_s=2)
    result = gateway.call("sandbox.exec", body, agent="travel")
    assert result.stdout == b"done\n" and result.duration_ms < 10_000


def test_a_stopped_supervisor_does_not_stop_the_clock(gateway):
    body = ExecRequest("kill -STOP $PPID; sleep 60", timeout_s=1)
    result = gateway.call("sandbox.exec", body, agent="travel")
    assert result.timed_out and result.duration_ms < 10_000
    assert gateway.travel.out("echo served") == "served"
