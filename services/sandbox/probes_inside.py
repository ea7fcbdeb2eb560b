"""The probes from inside: scripts that run as any command of the agent would. Pure.

None of them sends a packet: sockets of foreign families are created and closed, a UDP socket is
"connected", which only asks the kernel for a route. Files of the kernel that a write could do harm to are
opened for writing and closed. What a probe makes it removes. `python3 -I` ignores what the agent may have
put into its HOME or working directory.
"""

from __future__ import annotations

from services.sandbox.probes import Facts, Inside

NOTHING = "none"

_SYSCALL = """python3 -I -c '
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
def call(x86_64, aarch64, *arguments):
    check(libc.syscall({"x86_64": x86_64, "aarch64": aarch64}[os.uname().machine], *arguments))
try:
    ATTEMPT
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("worked")
'"""


def refused(name: str, shows: str, attempt: str) -> Inside:
    """A system call that must end with EPERM: that is the profile's no. Another error would come from the
    kernel's own code for it, which an attacker would then have reached."""
    return Inside(name, shows, _SYSCALL.replace("ATTEMPT", attempt), "EPERM")


def status(name: str, shows: str, lines: str, expected: str) -> Inside:
    script = f"grep -E '^({lines}):' /proc/self/status | cut -f2 | sort -u"
    return Inside(name, shows, script, expected)


def programs(name: str, shows: str, names: str) -> Inside:
    script = (
        f"for d in /usr/local/bin /usr/bin /bin /usr/local/sbin /usr/sbin /sbin; do for p in {names}; do "
        "[ -e $d/$p ] && echo $p; done; done | sort -u | xargs | sed 's/^$/none/'"
    )
    return Inside(name, shows, script, NOTHING)


def tmpfs_size(name: str, path: str) -> Inside:
    script = f"echo $(df -B1 --output=size {path} | tail -1)"
    return Inside(
        name, f"{path} is in memory and bounded", script, lambda facts: str(facts.tmpfs_bytes(path))
    )


def open_for_writing(paths: str) -> str:
    """Prints those that could be; opens them for appending and writes nothing."""
    return (
        f"found=$(for f in {paths}; do [ -f $f ] && (: >>$f) 2>/dev/null && echo $f; done | xargs); "
        "echo ${found:-none}"
    )


def _environment(facts: Facts) -> str:
    return "\n".join(sorted(f"{name}={value}" for name, value in facts.environment.items()))


def _cpu(facts: Facts) -> str:
    return f"{facts.host['NanoCpus'] / 10**9:.2f}"


def _limit(facts: Facts, name: str) -> tuple[int, int]:
    (found,) = (one for one in facts.host["Ulimits"] if one["Name"] == name)
    return int(found["Soft"]), int(found["Hard"])


_ROUTE = """python3 -I -c '
import re, socket
listed = re.findall(r"(?m)^nameserver (\\S+)", open("/etc/resolv.conf").read())
private = ["10.0.0.1"] + [f"172.{n}.0.1" for n in range(16, 32)]
private += [f"192.168.{n}.1" for n in range(0, 256, 16)]
found = []
for address in [a for a in listed if not a.startswith("127.")] + private + ["192.0.2.1", "2001:db8::1"]:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect((address, 53))
            found.append(address)
    except OSError:
        pass
print(*found or ["none"])
'"""
_SOCKETS = """python3 -I -c '
import os, stat
found = []
for top, directories, names in os.walk("/"):
    skipped = ("/proc", "/sys", "/usr", "/workspace", "/tmp", "/home/agent", "/dev/shm", "/run/beige")
    directories[:] = [d for d in directories if os.path.join(top, d) not in skipped]
    found += [p for n in names if stat.S_ISSOCK(os.lstat(p := os.path.join(top, n)).st_mode)]
print(*sorted(found) or ["none"])
'"""
_CAPABILITIES = """python3 -I -c '
import os
found = []
for top in ("/usr", "/beige", "/opt"):
    for directory, _, names in os.walk(top):
        for path in (os.path.join(directory, name) for name in names):
            try:
                os.getxattr(path, "security.capability", follow_symlinks=False)
                found.append(path)
            except OSError:
                pass
print(*sorted(found)[:9] or ["none"])
'"""
_REACH = (
    'found=$(for p in {paths}; do [ -e "$p" ] && echo "$p"; done 2>/dev/null | head -3 | xargs); '
    "echo ${{found:-none}}"
)
_IN_WORKSPACE = "d=$(mktemp -d /workspace/.verify-XXXXXX) && trap 'rm -rf \"$d\"' EXIT && "
_READ = "&& echo reached || echo 'not reached'"
_DISK = "$3 !~ /^(proc|sysfs|cgroup2?|devpts|mqueue|tmpfs|devtmpfs)$/"
DIRECTORIES = (
    "/ /usr /usr/bin /usr/local/bin /etc /var /opt /home /beige /tools /tools/bin /tools/packages /run"
    " /run/beige /lib /root"
)

IDENTITY = (
    Inside("uid", "a command runs as the agent's uid", "id -u", "64000"),
    Inside("gid", "a command has the agent's group and no other", "echo $(id -g) $(id -G)", "64000 64000"),
    status("capabilities", "it has no capability, and can get none", "CapInh|CapPrm|CapEff|CapBnd|CapAmb",
           "0000000000000000"),
    Inside("no-new-privileges", "a set-uid program gives it nothing",
           "python3 -I -c 'import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))'", "1"),
    status("seccomp", "its system calls are filtered", "Seccomp", "2"),
    refused("setuid-0", "it can't become root", "os.setuid(0)"),
    refused("setgroups", "it can't join a group", "os.setgroups([0])"),
    Inside("chown", "it can't give a file away",
           "f=$(mktemp) && chown 1:1 $f 2>/dev/null && echo worked || echo refused; rm -f $f", "refused"),
    Inside("set-id-files", "no program with a set-uid or set-gid bit",
           "find / -xdev -type f -perm /6000 2>/dev/null | wc -l", "0"),
    Inside("file-capabilities", "no program with capabilities of its own", _CAPABILITIES, NOTHING),
    programs("package-managers", "no package manager",
             "apt apt-get aptitude dpkg apk yum dnf rpm pip pip3 npm yarn gem cargo snap"),
    programs("privilege-tools", "nothing to change identity, mounts or namespaces with",
             "su sudo doas pkexec passwd newgrp login mount umount unshare nsenter chroot setpriv capsh"),
    programs("engine-clients", "no client of a container engine",
             "docker dockerd podman nerdctl ctr crictl runc containerd"),
    Inside("environment", "its environment is what beige made, nothing of the host's",
           "tr '\\0' '\\n' </proc/$$/environ | sort", _environment,
           executor=True),
)  # fmt: skip

FILES = (
    Inside("root-mount", "the root is mounted read-only",
           "awk '$2 == \"/\" {print substr($4, 1, 2)}' /proc/mounts | tail -1", "ro"),
    Inside("writable-directories", "no program, launcher or document can be changed",
           f"found=$(for d in {DIRECTORIES}; do (: >$d/.verify) 2>/dev/null && echo $d && rm $d/.verify; "
           "done | xargs); echo ${found:-none}", NOTHING),
    Inside("mounts-inside", "what is mounted from a disk, besides three files of the engine's",
           f"awk '$2 != \"/\" && {_DISK} {{print $2}}' /proc/mounts | "
           "grep -vE '^/etc/|/docker-init$' | sort | xargs",
           "/run/beige /tools/bin /tools/packages /workspace"),
    Inside("engine-files", "the engine's files and the list of users can't be changed",
           open_for_writing("/etc/hosts /etc/hostname /etc/resolv.conf /etc/passwd"), NOTHING),
    Inside("tmp-noexec", "a program in /tmp does not run",
           "f=$(mktemp) && cp /bin/true $f && chmod 755 $f && $f 2>/dev/null; echo $?; rm -f $f", "126"),
    tmpfs_size("tmp-size", "/tmp"),  # noqa: S108 - in the container
    tmpfs_size("home-size", "/home/agent"),
    Inside("home-mode", "HOME is the agent's alone", "stat -c '%a %u' $HOME", "700 64000"),
    Inside("host-files", "the gateway's configuration, keys and records are not there",
           _REACH.format(paths='"$1"/config.json5 "$1"/keys "$1"/logs/audit.jsonl'), NOTHING),
    Inside("host-files-proc", "the gateway's files can't be reached through /proc",
           _REACH.format(paths='/proc/self/root"$1"/config.json5 /proc/1/root"$1"/config.json5'
                               ' /proc/self/cwd/../../../..$1/config.json5'), NOTHING),
    Inside("host-files-dots", "the gateway's files can't be reached by climbing out of the workspace",
           f'cat /workspace/../../../../../../../..$1/config.json5 >/dev/null 2>&1 {_READ}', "not reached"),
    Inside("host-files-symlink", "the gateway's files can't be reached by a symbolic link",
           _IN_WORKSPACE + f'ln -s "$1" "$d/link" && cat "$d/link/config.json5" >/dev/null 2>&1 {_READ}',
           "not reached"),
    Inside("hard-link", "no hard link into the workspace can be made",
           _IN_WORKSPACE + "ln /etc/passwd $d/hard 2>/dev/null && echo worked || echo refused", "refused"),
    Inside("set-uid-workspace", "a set-uid program the agent makes itself changes nothing",
           _IN_WORKSPACE + "cp /usr/bin/id $d/id && chmod 6755 $d/id && $d/id -u", "64000"),
    Inside("other-agents", "no other agent's socket, workspace or launchers",
           _REACH.format(paths='"$2"/agents/* "$1"/agents/* "$2"/bus.sock'), NOTHING),
    Inside("sockets", "no socket but its own and those of beige's for it", _SOCKETS, NOTHING),
    Inside("engine-socket", "no container engine's socket",
           _REACH.format(paths="/var/run/docker.sock /run/docker.sock /run/containerd/containerd.sock"
                               " /run/podman/podman.sock"), NOTHING),
    Inside("device-nodes", "only the six harmless devices",
           "find /dev -path /dev/pts -prune -o \\( -type b -o -type c \\) -print | sort | xargs",
           "/dev/full /dev/null /dev/random /dev/tty /dev/urandom /dev/zero"),
    Inside("mknod", "no device can be made",
           "mknod /dev/shm/verify c 1 3 2>/dev/null && echo worked || echo refused; rm -f /dev/shm/verify",
           "refused"),
)  # fmt: skip

KERNEL = (
    Inside("proc-masks", "/proc/kcore, keys and timer_list are masked",
           "(cat /proc/keys /proc/timer_list; head -c 1 /proc/kcore) 2>/dev/null | wc -c", "0"),
    Inside("sys-firmware", "/sys/firmware is masked", "ls /sys/firmware 2>/dev/null | wc -l", "0"),
    Inside("proc-write", "no kernel setting can be written",
           open_for_writing("/proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sysrq-trigger"
                            " /proc/sys/vm/drop_caches"), NOTHING),
    Inside("sys-mount", "/sys is mounted read-only",
           "awk '$2 == \"/sys\" {print substr($4, 1, 2)}' /proc/mounts | sort -u", "ro"),
    Inside("cgroup-write", "the container's limits can't be raised",
           open_for_writing("/sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs"
                            " /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max"
                            " /sys/fs/cgroup/pids/pids.max"), NOTHING),
    refused("vsock", "AF_VSOCK, which no network namespace covers, can't even be created",
            "socket.socket(40, socket.SOCK_STREAM).close()"),
    refused("packet-socket", "no packet socket", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()"),
    refused("raw-socket", "no raw socket",
            "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()"),
    refused("kernel-crypto", "no AF_ALG", "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close()"),
    refused("uevents", "no kernel events over netlink",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15).close()"),
    refused("user-namespace", "no user namespace", "check(libc.unshare(0x10000000))"),
    refused("mount", "no mount", 'check(libc.mount(b"verify", b"/mnt", b"tmpfs", 0, None))'),
    refused("remount", "the root can't be made writable",
            'check(libc.mount(b"", b"/", b"", 0x1020, None))'),
    refused("chroot", "no chroot", 'os.chroot("/")'),
    refused("ptrace", "it can't trace itself", "check(libc.ptrace(0, 0, 0, 0))"),
    refused("ptrace-executor", "it can't trace the first process",
            "check(libc.ptrace(0x4206, 1, 0, 0))"),
    refused("process-memory", "it can't read another process's memory",
            "call(310, 270, os.getpid(), 0, 0, 0, 0, 0)"),
    refused("pidfd-getfd", "it can't take another process's descriptors", "call(438, 438, -1, 0, 0)"),
    refused("io-uring", "no io_uring", "call(425, 425, 1, 0)"),
    refused("bpf", "no bpf", "call(321, 280, 99, 0, 0)"),
    refused("keyctl", "no kernel keyring", "call(250, 219, 0, -3, 0)"),
    refused("userfaultfd", "no userfaultfd", "call(323, 282, 1)"),
    refused("perf-event", "no perf events", "call(298, 241, 0, 0, -1, -1, 0)"),
    refused("file-handles", "no file by its handle, past the mounts", "call(304, 265, -1, 0, 0)"),
    refused("setns", "no other namespace", "call(308, 268, -1, 0)"),
    refused("kernel-module", "no kernel module", 'call(313, 273, -1, b"", 0)'),
)  # fmt: skip

NETWORK = (
    Inside("interfaces", "no interface but loopback",
           "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | xargs", "lo"),
    Inside("routes", "no route", "echo $(($(cat /proc/net/route | wc -l) - 1)) "
           "$(grep -v ' lo$' /proc/net/ipv6_route 2>/dev/null | wc -l)", "0 0"),
    Inside("no-way-out", "neither a nameserver nor any private or public address has a route", _ROUTE,
           NOTHING),
)  # fmt: skip

EXECUTOR = (
    Inside("first-process-inside", "the container's first process is the executor", "cat /proc/1/comm",
           "init", executor=True),
    Inside("executor-closed", "the agent can't get into the executor, nor at its connection",
           "head -c 1 /proc/1/mem 2>/dev/null | wc -c; (: >>/proc/1/mem) 2>/dev/null && echo open || "
           "echo closed; for f in /proc/1/fd/*; do case $(readlink $f) in socket:*) "
           "(: <>$f) 2>/dev/null && echo $f; esac; done | wc -l", "0\nclosed\n0", executor=True),
    Inside("executor-private", "the agent can't look into the executor",
           "cat /proc/1/environ 2>/dev/null | wc -c; readlink /proc/1/fd/0 /proc/1/fd/3 2>/dev/null | wc -l",
           "0\n0", executor=True),
    Inside("executor-signals", "the agent can't end or stop the executor",
           "kill -9 1; kill -STOP 1; kill -TERM 1; echo alive", "alive", executor=True),
    Inside("victims", "a command is killed for memory before the executor", "cat /proc/self/oom_score_adj",
           "1000", executor=True),
)  # fmt: skip

LIMITS = (
    Inside("core-dumps", "no core dump", "ulimit -Hc", "0"),
    Inside("open-files", "open files are bounded", "echo $(ulimit -Sn) $(ulimit -Hn)",
           lambda facts: "{} {}".format(*_limit(facts, "nofile"))),
    Inside("processes-of-uid", "processes of the uid are bounded", "ulimit -Hu",
           lambda facts: str(_limit(facts, "nproc")[1])),
    Inside("file-size", "no file over the limit, not even a sparse one",
           _IN_WORKSPACE + 'truncate -s $(($(ulimit -f) * 1024 + 1)) $d/big 2>/dev/null && echo worked || '
           'echo refused; ulimit -Hf', lambda facts: f"refused\n{_limit(facts, 'fsize')[1] // 1024}"),
    Inside("cgroup-memory", "the kernel holds the memory limit",
           "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes",
           lambda facts: str(facts.host["Memory"])),
    Inside("cgroup-pids", "the kernel holds the limit of processes",
           "cat /sys/fs/cgroup/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids/pids.max",
           lambda facts: str(facts.host["PidsLimit"])),
    Inside("cgroup-cpu", "the kernel holds the limit of processor time",
           "(cat /sys/fs/cgroup/cpu.max 2>/dev/null || echo $(cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us "
           "/sys/fs/cgroup/cpu/cpu.cfs_period_us)) | awk '{printf \"%.2f\\n\", $1 / $2}'", _cpu),
)  # fmt: skip

_FORKS = """python3 -I -c '
import os, signal, sys
signal.alarm(60)
children, ended = [], "never refused"
try:
    for _ in range(2 * int(sys.argv[1])):
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            signal.pause()
            os._exit(0)
        children.append(child)
except OSError:
    ended = "refused"
for child in children:
    os.kill(child, signal.SIGKILL)
for child in children:
    os.waitpid(child, 0)
print(ended)
' "$3"
"""
_MEMORY = """python3 -I -c '
import signal, sys
signal.alarm(60)
kept = bytearray(int(sys.argv[1]) + 64 * 2**20)
for place in range(0, len(kept), 4096):
    kept[place] = 1
' "$4" 2>/dev/null; echo $?"""

ABUSE = (
    Inside("abuse-forks", "a fork bomb meets the limit", _FORKS, "refused", abuse=True),
    Inside("abuse-memory", "a command that wants more memory is killed, the container lives", _MEMORY, "137",
           abuse=True),
    Inside("abuse-tmp", "the /tmp in memory can't grow beyond its size",
           "f=$(mktemp) && head -c $(($5 + 1048576)) /dev/zero >$f 2>/dev/null && echo worked || "
           "echo refused; rm -f $f", "refused", abuse=True),
    Inside("abuse-inodes", "the /tmp in memory can't hold any number of files",
           "d=$(mktemp -d) && cd $d && seq 20000 | xargs touch 2>/dev/null && echo worked || echo refused; "
           "rm -rf $d", "refused", abuse=True),
    Inside("abuse-survived", "after all that the sandbox still serves", "id -u", "64000", abuse=True),
)  # fmt: skip

INSIDE: tuple[Inside, ...] = (*IDENTITY, *FILES, *KERNEL, *NETWORK, *EXECUTOR, *LIMITS, *ABUSE)
