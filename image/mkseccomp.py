"""Writes seccomp.json, and seccomp-root.json for agents that are root inside, from the list below.

    python image/mkseccomp.py            writes them beside this file
    python image/mkseccomp.py --check    exit 1 when one differs from the list

An allow list: what is not named fails with EPERM. Docker ignores names that the machine's architecture
does not have, so one list serves x86-64 and arm64; 32-bit and x32 calls are of neither architecture, and
the kernel kills their caller. `REFUSED` has no effect of its own: it records why a call is missing, and
tests/unit/image/test_seccomp.py holds the two lists apart.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROFILE = Path(__file__).with_name("seccomp.json")
ROOT_PROFILE = Path(__file__).with_name("seccomp-root.json")

EPERM = 1
ENOSYS = 38

ALLOWED = {
    "files and directories": """
        access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
        fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr
        flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents
        getdents64 getxattr ioctl lchown lgetxattr link linkat listxattr llistxattr lremovexattr lseek
        lsetxattr lstat mkdir mkdirat newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev
        pwritev2 read readahead readlink readlinkat readv removexattr rename renameat renameat2 rmdir
        sendfile setxattr splice stat statfs statx symlink symlinkat sync sync_file_range syncfs tee
        truncate umask unlink unlinkat utime utimensat utimes vmsplice write writev""",
    "waiting for files": """
        epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2
        inotify_add_watch inotify_init inotify_init1 inotify_rm_watch poll ppoll pselect6 select""",
    "asynchronous files of old (not io_uring, see below)": """
        io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit""",
    "memory": """
        brk cachestat madvise map_shadow_stack membarrier memfd_create mincore mlock mlock2 mlockall mmap
        mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect
        remap_file_pages""",
    "processes and threads; clone has a rule of its own": """
        arch_prctl execve execveat exit exit_group fork futex futex_requeue futex_wait futex_waitv
        futex_wake get_robust_list get_thread_area getpgid getpgrp getpid getppid getsid gettid
        pidfd_open pidfd_send_signal prctl process_mrelease restart_syscall rseq set_robust_list
        set_thread_area set_tid_address setpgid setsid vfork wait4 waitid""",
    "signals": """
        kill pause rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
        rt_sigtimedwait rt_tgsigqueueinfo sigaltstack signalfd signalfd4 tgkill tkill""",
    "limits and scheduling; prlimit64 has rules of its own": """
        getcpu getpriority getrlimit getrusage ioprio_get ioprio_set sched_get_priority_max
        sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
        sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield
        setpriority setrlimit sysinfo times""",
    "identity: without capabilities these change nothing, and programs call them": """
        capget capset getegid geteuid getgid getgroups getresgid getresuid getuid setfsgid setfsuid setgid
        setgroups setregid setresgid setresuid setreuid setuid uname""",
    "time": """
        alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time
        timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
        timerfd_gettime timerfd_settime""",
    "sockets, once created; socket and socketpair have rules of their own": """
        accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg
        sendmmsg sendmsg sendto setsockopt shutdown""",
    "pipes and System V and POSIX queues, private to the container": """
        mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd
        pipe pipe2 semctl semget semop semtimedop shmat shmctl shmdt shmget""",
    "narrowing one's own rights further": """
        landlock_add_rule landlock_create_ruleset landlock_restrict_self seccomp""",
    "randomness": "getrandom",
}

REFUSED = {
    "a way out of the network namespace, or into kernel code nobody here needs": "io_uring_enter"
    " io_uring_register io_uring_setup bpf userfaultfd perf_event_open",
    "reading or steering other processes": "ptrace process_vm_readv process_vm_writev process_madvise"
    " pidfd_getfd kcmp move_pages migrate_pages",
    "namespaces, mounts, roots": "unshare setns mount umount2 mount_setattr move_mount open_tree fsopen"
    " fsconfig fsmount fspick pivot_root chroot open_by_handle_at name_to_handle_at statmount listmount",
    "kernel keyrings, which are not namespaced": "add_key keyctl request_key",
    "machine-wide state": "acct adjtimex clock_adjtime clock_settime settimeofday delete_module"
    " finit_module init_module kexec_file_load kexec_load ioperm iopl quotactl quotactl_fd reboot"
    " sethostname setdomainname swapoff swapon syslog vhangup lookup_dcookie fanotify_init fanotify_mark",
    "memory placement, and memory that hides from the kernel": "get_mempolicy mbind set_mempolicy"
    " set_mempolicy_home_node memfd_secret modify_ldt",
    "obsolete": "_sysctl afs_syscall create_module epoll_ctl_old epoll_wait_old get_kernel_syms getpmsg"
    " nfsservctl putpmsg query_module security sysfs tuxcall uselib ustat vserver",
}

ROOT_ALLOWED = "chroot mknod mknodat"
"""What apt and dpkg call as root. Without CAP_SYS_CHROOT and CAP_MKNOD, which nobody gets here, the kernel
refuses the dangerous half of them itself."""

# Unix, IPv4 and IPv6 (a server on loopback is legitimate). Netlink only for routes, which is how
# programs list their interfaces. All other families are refused at creation, above all AF_VSOCK, which no
# network namespace contains: it would reach the hypervisor from a container without any network.
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0

# CLONE_NEW: NS, CGROUP, UTS, IPC, USER, PID, NET.
NEW_NAMESPACES = 0x7E020000

# PER_LINUX, PER_LINUX32, and the query; no READ_IMPLIES_EXEC, no ADDR_NO_RANDOMIZE.
PERSONALITIES = (0x0, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF)

S_IFMT, S_IFIFO = 0o170000, 0o010000

Rule = dict[str, Any]


def equal(index: int, value: int) -> Rule:
    return {"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_EQ"}


def masked(index: int, mask: int, value: int) -> Rule:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def allow(names: list[str], *args: Rule) -> Rule:
    """All of `args` must hold. Several rules for one call are alternatives."""
    return {"names": names, "action": "SCMP_ACT_ALLOW", **({"args": list(args)} if args else {})}


def names_of(groups: dict[str, str]) -> list[str]:
    return sorted(name for text in groups.values() for name in text.split())


def conditional_rules() -> list[Rule]:
    return [
        *(allow(["socket"], equal(0, family)) for family in (AF_UNIX, AF_INET, AF_INET6)),
        allow(["socket"], equal(0, AF_NETLINK), equal(2, NETLINK_ROUTE)),
        allow(["socketpair"], equal(0, AF_UNIX)),
        allow(["clone"], masked(0, NEW_NAMESPACES, 0)),
        # Its flags lie in memory, where a filter cannot look; told "no such call" libc uses clone.
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
        *(allow(["personality"], equal(0, value)) for value in PERSONALITIES),
        # Setting one's own limits, reading anybody's. An executor whose limits the agent lowers serves
        # nobody, and no uid or capability is in the way of that.
        allow(["prlimit64"], equal(0, 0)),
        allow(["prlimit64"], equal(2, 0)),
        # mkfifo; devices would need a capability anyway.
        allow(["mknod"], masked(1, S_IFMT, S_IFIFO)),
        allow(["mknodat"], masked(2, S_IFMT, S_IFIFO)),
    ]


def profile(*, root: bool = False) -> dict[str, Any]:
    more = [allow(sorted(ROOT_ALLOWED.split()))] if root else []
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [allow(names_of(ALLOWED)), *conditional_rules(), *more],
    }


def text(*, root: bool = False) -> str:
    return json.dumps(profile(root=root), indent=1) + "\n"


def main(arguments: list[str]) -> int:
    wanted = {PROFILE: text(), ROOT_PROFILE: text(root=True)}
    if "--check" not in arguments:
        for path, content in wanted.items():
            path.write_text(content)
        return 0
    stale = [path.name for path, content in wanted.items() if path.read_text() != content]
    for name in stale:
        print(f"{name} does not match mkseccomp.py: run python image/mkseccomp.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
