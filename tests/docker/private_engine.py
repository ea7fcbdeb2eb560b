"""A dockerd of a test's own: one that can be stopped, or that has runtimes which the machine's has not.

The engine of this machine is other people's too. This one lives in a network and mount namespace where it
can't touch the first one's bridge or mounts, and its end ends its containers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

START_S = 60
END_S = 20
"""How long processes of ended containers may take to go."""


class PrivateEngine:
    def __init__(self, root: Path, runtimes: Mapping[str, Any]) -> None:
        self._root, self.host = root, f"unix://{root}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None
        (root / "daemon.json").write_text(json.dumps({"runtimes": runtimes}))

    def start(self) -> None:
        # A mount namespace that still sees later mounts of the host; a network of its own, because a
        # second engine with --bridge=none removes the first one's docker0.
        command = [
            *("unshare", "--mount", "--propagation=slave", "--net", "dockerd", f"--host={self.host}"),
            *(f"--data-root={self._root}/data", f"--exec-root={self._root}/exec"),
            *(f"--pidfile={self._root}/pid", f"--config-file={self._root}/daemon.json"),
            *("--bridge=none", "--iptables=false", "--cgroup-parent=/beige-drill"),
        ]
        (self._root / "pid").unlink(missing_ok=True)
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + START_S
        while self.docker("version", check=False).returncode:
            assert time.monotonic() < end, (self._root / "log").read_text()[-4000:]
            assert self._process.poll() is None, (self._root / "log").read_text()[-4000:]
            time.sleep(0.05)

    def docker(
        self, *arguments: str, check: bool = True, stdin: int | None = None, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """`stdin` is a descriptor, `text` is what is written there without one."""
        given = {"input": text} if stdin is None else {"stdin": stdin}
        return subprocess.run(
            ["docker", f"--host={self.host}", *arguments],
            **given, capture_output=True, text=True, timeout=120, check=check,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=60)

    def left_over(self) -> list[str]:
        """What of its containers does not go away after its end; is ended here."""
        end = time.monotonic() + END_S
        while (found := self._processes()) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return list(found.values())

    def _processes(self) -> dict[int, str]:
        """Those that name a file of its directory."""
        found = {int(process.name): _command_line(process) for process in Path("/proc").glob("[0-9]*")}
        return {pid: line for pid, line in found.items() if f"{self._root}/" in line and pid != os.getpid()}

    def take_image(self, name: str) -> None:
        """From the machine's own engine: about 6 s for the sealed one."""
        with subprocess.Popen(["docker", "save", name], stdout=subprocess.PIPE) as saved:
            assert saved.stdout is not None
            self.docker("load", stdin=saved.stdout.fileno())


def _command_line(process: Path) -> str:
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_text(errors="replace").replace("\0", " ")
    return ""


def possible() -> bool:
    return os.geteuid() == 0 and shutil.which("dockerd") is not None


@contextlib.contextmanager
def running(image: str, runtimes: Mapping[str, Any] | None = None) -> Iterator[PrivateEngine]:
    """One that has this image, in memory where that can be had."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="bgd-", dir=place, ignore_cleanup_errors=True) as name:
        engine = PrivateEngine(Path(name), runtimes or {})
        engine.start()
        try:
            engine.take_image(image)
            yield engine
        finally:
            engine.stop()
            left = engine.left_over()
        assert left == [], "processes of its containers are left"
