"""The sandbox image on a real engine: what is in it, what is not, and who is PID 1."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from beige.paths import image_dir
from services.sandbox import image

pytestmark = pytest.mark.docker

host_file = Path(__file__).parents[1] / "unit" / "image" / "executor_host.py"
spec = importlib.util.spec_from_file_location("executor_host", host_file)
host = importlib.util.module_from_spec(spec)
sys.modules.setdefault("executor_host", host)
spec.loader.exec_module(host)

PIDS_LIMIT = 64
HOME_OPTIONS = "rw,nosuid,nodev,size=32m,mode=0700,uid=64000,gid=64000"
ENVIRONMENT = {
    "PATH": "/tools/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/home/agent",
    "DENO_DIR": "/tmp/deno",
}


def docker(*arguments, check=True):
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def built():
    """The image, up to date. Building it is a no-op of a fifth of a second when it is there."""
    code = image.main(["build"])
    if code == 3:
        pytest.skip("no Docker engine answers")
    assert code == 0
    return json.loads(docker("image", "inspect", image.DEFAULT_TAG))[0]


class Sandbox(host.Box):
    """A container of the image below the flags of the sealed profile, and the host's end of its channel."""

    def __init__(self, directory):
        directory.chmod(0o711)
        super().__init__(directory / "exec.sock")
        self.path.chmod(0o666)
        self.container = docker(
            "run", "--detach", "--network=none", "--read-only", "--cap-drop=ALL", "--user=64000:64000",
            "--security-opt=no-new-privileges", f"--security-opt=seccomp={image_dir() / 'seccomp.json'}",
            f"--pids-limit={PIDS_LIMIT}", "--memory=256m", "--memory-swap=256m", "--oom-score-adj=500",
            "--tmpfs=/tmp:rw,nosuid,nodev,size=32m", f"--tmpfs=/home/agent:{HOME_OPTIONS}",
            f"--volume={directory}:/run/beige:ro", "--label=beige.test=image", image.DEFAULT_TAG,
        )  # fmt: skip
        self.hello = self.accept()
        self.last_job = 0

    def bash(self, script, **options):
        self.last_job += 1
        options.setdefault("timeout_ms", 30_000)
        options.setdefault("env", ENVIRONMENT)
        return self.run(self.last_job, "bash", "-c", script, **options)

    def out(self, script):
        """Output of a script that succeeds."""
        ended = self.bash(script)
        assert ended.status == 0, ended.stderr.decode()
        return ended.stdout.decode().strip()

    def close(self):
        docker("rm", "--force", self.container)
        self.hang_up()
        self.listener.close()


@pytest.fixture(scope="module")
def box(built, tmp_path_factory):
    started = Sandbox(tmp_path_factory.mktemp("sandbox"))
    yield started
    started.close()


# --- contents ---------------------------------------------------------------------------------------


def test_no_file_gives_another_identity(box):
    assert box.out("find / -xdev -perm /6000 2>/dev/null || true") == ""
    assert box.out(
        "python3 -c \"\nimport os\nfor d, _, names in os.walk('/usr'):\n for n in names:\n"
        "  try: os.getxattr(os.path.join(d, n), 'security.capability'); print(d, n)\n  except OSError: pass\""
    ) == ""  # fmt: skip


ABSENT = {
    "package managers": "apt apt-get dpkg debconf apk yum dnf pip pip3 npm gem update-alternatives",
    "identity": "su sudo doas passwd newgrp chsh gpasswd useradd login",
    "mounts and namespaces": "mount umount unshare nsenter setpriv runuser chroot pivot_root losetup capsh",
    "governed or unneeded": "git perl gcc cc ld as make gdb strace ssh nc ncat socat",
}


@pytest.mark.parametrize("names", ABSENT.values(), ids=ABSENT)
def test_programs_that_must_not_be_there(box, names):
    everywhere = " ".join(f"-o -name {name}" for name in names.split())
    assert box.bash(f"command -v {names}").stdout == b""
    assert box.out(f"find / -xdev -type f -perm /111 \\( -false {everywhere} \\) 2>/dev/null || true") == ""


def test_nothing_of_perl_or_the_package_managers_data_is_left(box):
    assert box.out("ls -d /var/lib/dpkg /var/lib/apt /etc/apt /usr/share/perl* 2>/dev/null || true") == ""
    assert box.out("find / -xdev -name '*.pm' -o -xdev -name 'libperl*' 2>/dev/null || true") == ""


def test_no_symlink_leads_nowhere(box):
    broken = box.out("find /usr /etc -xdev -xtype l 2>/dev/null || true")
    assert broken == ""


def test_the_package_list_is_kept(box):
    packages = dict(
        line.split("\t")[:2] for line in box.out("cat /usr/share/beige/packages.tsv").splitlines()
    )
    assert {"bash", "python3", "curl", "libc6"} <= set(packages)
    assert "git" not in packages


def test_nobody_may_write_to_the_image(box):
    """Read-only mounts aside: only /tmp and the agent's own two directories belong to others than root."""
    writable = box.out("find / -xdev \\( -type d -o -type f \\) -perm -0002 2>/dev/null || true")
    assert writable.split() == ["/tmp"]
    owned = box.out("find / -xdev ! -uid 0 2>/dev/null || true")
    assert sorted(owned.split()) == ["/home/agent", "/workspace"]


WORKS = {
    "python": ("python3 -c 'import sqlite3, ssl, ctypes; print(6 * 7)'", "42"),
    "python threads": (
        "python3 -c 'import concurrent.futures as c; print(*c.ThreadPoolExecutor().map(abs, [-1]))'",
        "1",
    ),
    "python processes": ("python3 -c 'import multiprocessing as m; print(m.Pool(2).map(abs, [-1]))'", "[1]"),
    "deno": ("deno eval 'console.log(await new Response(\"d\").text())'", "d"),
    "jq": ("echo '{\"a\": 1}' | jq .a", "1"),
    "ripgrep": ("echo needle | rg -o need", "need"),
    "patch": ("cd /tmp; echo a > f; printf '1c1\\n< a\\n---\\n> b\\n' | patch -s f && cat f", "b"),
    "tar": ("tar cz -C / etc/passwd | tar tz", "etc/passwd"),
    "zip": ("cd /tmp; echo x > z; zip -q z.zip z && unzip -p z.zip", "x"),
    "curl": ("curl -s file:///etc/hostname | wc -l", "1"),
    "awk sed grep": ("echo abc | sed s/b/x/ | grep -o x | awk '{print $1}'", "x"),
    "fifo": ("mkfifo /tmp/fifo && (echo through > /tmp/fifo &) && cat /tmp/fifo", "through"),
    "a server on loopback": (
        "python3 -m http.server 8000 -d /usr/share/beige >/tmp/log 2>&1 &"
        " for i in $(seq 50); do curl -sf localhost:8000/packages.tsv >/tmp/got && break; sleep 0.1; done;"
        " kill %1; grep -c ^bash /tmp/got",
        "1",
    ),
    "xz bzip2 file tree less diff ps": (
        "for t in xz bzip2 file tree less diff ps find xargs; do command -v $t >/dev/null || echo $t; done;"
        " echo all",
        "all",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("script", "output"), WORKS.values(), ids=WORKS)
def test_the_tools_work_below_the_sealed_profile(box, script, output):
    assert box.out(script) == output


def test_the_images_settings(built):
    config = built["Config"]
    assert (config["User"], config["WorkingDir"], config["Cmd"]) == (
        "64000:64000",
        "/workspace",
        ["/beige/init"],
    )
    assert not any(config.get(name) for name in ("Entrypoint", "Volumes", "ExposedPorts"))
    assert {f"{name}={value}" for name, value in ENVIRONMENT.items()} <= set(config["Env"])
    assert len(config["Labels"]["beige.recipe"]) == 16
    assert len(built["RootFS"]["Layers"]) <= 2, "a lower layer would still hold what was removed"


def test_the_places_that_are_mounted_and_the_gateways_symlink(box):
    assert box.out("readlink /beige/gateway.sock") == "/run/beige/gateway.sock"
    assert box.out("stat -c '%a %u' /workspace /tools/bin /tools/packages /run/beige").splitlines()[1:3] == [
        "755 0", "755 0",
    ]  # fmt: skip
    assert docker(
        "run", "--rm", "--network=none", image.DEFAULT_TAG, "stat", "-c", "%a %u:%g", "/home/agent"
    ) == ("700 64000:64000")


# --- the executor as PID 1 --------------------------------------------------------------------------


def test_the_executor_is_pid_1_and_nobody_may_look_into_it(box):
    assert box.hello == (1, 1)
    assert box.out("cat /proc/1/comm; id -u; id -G").split() == ["init", "64000", "64000"]
    for entry in ("environ", "fd", "mem", "maps", "exe", "cwd"):
        assert box.bash(f"cat /proc/1/{entry} || ls /proc/1/{entry}/").status != 0


def test_nor_into_the_supervisors(box):
    ended = box.bash("cat /proc/$PPID/comm; cat /proc/$PPID/environ; ls /proc/$PPID/fd")
    assert ended.stdout == b"beige-job\n"
    assert ended.stderr.count(b"Permission denied") == 2


def test_no_signal_from_inside_ends_the_executor(box):
    box.bash("for s in KILL TERM INT HUP QUIT STOP SEGV USR1 CHLD PIPE; do kill -$s 1; done; sleep 0.1")
    assert box.out("echo alive") == "alive"


def test_a_fork_bomb_ends_with_its_timeout_or_with_a_reset(box):
    bomb = "python3 -c '\nimport os\nwhile True:\n try: os.fork()\n except OSError: pass'"
    ended = box.bash(f"{bomb} & setsid {bomb} & wait", timeout_ms=1000)
    assert ended.flags == 1
    box.bash(f"nohup setsid {bomb} >/dev/null 2>&1 & sleep 1")
    box.reset()
    assert box.out("ls -d /proc/[0-9]* | wc -l") <= "6"


def test_a_memory_hog_dies_and_the_executor_does_not(box):
    ended = box.bash("exec python3 -c 'b = []\nwhile True: b.append(bytearray(16 << 20))'")
    assert ended.status == -signal.SIGKILL
    assert box.out("echo alive") == "alive"


def test_a_killed_supervisor_frees_nobody(box):
    ended = box.bash("(setsid sleep 1234 &); pkill -KILL beige-job; sleep 1234")
    assert (ended.status, ended.flags) == (-signal.SIGKILL, 0)
    assert host.eventually(lambda: box.bash("pgrep -x sleep").status == 1)


def test_a_restarted_host_finds_an_empty_box(box):
    box.bash("sleep 4321 & echo started")
    box.hang_up()
    box.listener.close()
    box.listen()
    box.path.chmod(0o666)
    assert box.accept() == (1, 1)
    assert box.bash("pgrep -x sleep").status == 1


def test_docker_stop_is_obeyed_at_once(built, tmp_path):
    started = Sandbox(tmp_path)
    try:
        docker("stop", "-t", "-1", started.container)  # no kill follows: the first signal ends it, or nothing
        assert docker("inspect", "-f", "{{.State.ExitCode}}", started.container) == "137"
    finally:
        started.close()


# --- what the profile refuses -----------------------------------------------------------------------

SYSCALLS = {
    "io_uring_setup": 425, "ptrace": 101, "unshare": 272, "setns": 308, "keyctl": 250, "bpf": 321,
    "userfaultfd": 323, "perf_event_open": 298, "mount": 165, "open_by_handle_at": 304, "chroot": 161,
    "process_vm_readv": 310, "pidfd_getfd": 438, "kcmp": 312, "syslog": 103,
}  # fmt: skip


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
@pytest.mark.parametrize("number", SYSCALLS.values(), ids=SYSCALLS)
def test_the_kernel_refuses(box, number):
    assert box.out(f"python3 -c '{CALL.format(number=number)}'") == "-1 1"


CALL = (
    "import ctypes; c = ctypes.CDLL(None, use_errno=True);"
    ' print(c.syscall({number}, 0, 0, 0, 0, 0), ctypes.get_errno())'
)  # fmt: skip


@pytest.mark.parametrize(
    ("family", "kind", "protocol"),
    [(40, 1, 0), (38, 5, 0), (17, 3, 0), (16, 3, 15), (31, 1, 0)],
    ids=["vsock", "kernel crypto", "packet", "netlink uevents", "bluetooth"],
)
def test_sockets_of_other_families_cannot_be_made(box, family, kind, protocol):
    """Only made, never connected: AF_VSOCK would lead out of a container without a network."""
    ended = box.bash(f"python3 -c 'import socket; socket.socket({family}, {kind}, {protocol})'")
    assert b"Operation not permitted" in ended.stderr


# --- the tool client --------------------------------------------------------------------------------


def test_a_tool_call_reaches_the_gateways_socket_through_the_symlink(box):
    with socket.socket(socket.AF_UNIX) as gateway:
        gateway.bind(str(box.path.parent / "gateway.sock"))
        (box.path.parent / "gateway.sock").chmod(0o666)
        gateway.listen(1)
        gateway.settimeout(20)
        answer = threading.Thread(target=answer_once, args=(gateway,))
        answer.start()
        ended = box.bash(
            "cd /tmp; /beige/tool-client git status; echo $?", env={**ENVIRONMENT, "BEIGE_CALL_TOKEN": "k"}
        )
        answer.join()
    (box.path.parent / "gateway.sock").unlink()
    assert ended.stdout.decode() == "git ['status'] k /tmp\n5\n"


def answer_once(gateway):
    connection, _ = gateway.accept()
    with connection, connection.makefile("rw") as stream:
        request = json.loads(stream.readline())
        output = f"{request['tool']} {request['args']} {request['token']} {request['cwd']}"
        stream.write(
            json.dumps({"type": "tool_response", "success": False, "output": output, "exitCode": 5}) + "\n"
        )


def test_without_a_gateway_a_tool_call_says_so(box):
    ended = box.bash("/beige/tool-client git status")
    assert (ended.status, ended.stdout) == (69, b"")
    assert ended.stderr.count(b"\n") == 1
