"""`beige demo`: the main job, end to end, with the commands an operator would type.

Exits 0 only if the audit log shows what the demonstration claims.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beige.errors import ConfigError, Failed
from beige.paths import Home

AGENT, TOOL, CALLS = "travel", "kv", 20
PROMPT = "Plan my trip through Europe: store ten stops with the kv tool, from a script."
MARK = "// The configuration of `beige demo`"
STEP_S = 1800.0
CLEAN_UP_S = 60.0
READ_BYTES = 64 * 1024 * 1024
"""How much of the log is looked through for the session."""


@dataclass(frozen=True)
class Evidence:
    """What the audit log says about one session."""

    kv_calls: int
    """`kv` calls with a started and a finished record, each under an `exec` of the session."""
    denials: list[str]
    records: int

    @property
    def complete(self) -> bool:
        return self.kv_calls == CALLS and len(self.denials) == 1


def demo() -> None:
    """Start everything in $BEIGE_HOME, or in a fresh temporary home, and watch an agent (its model is a
    script, no key is needed) write a program, run it in its container, call a plugin tool twenty times
    from inside, be denied another one, and find all of it in the audit log.

    \b
    Example:
      beige demo
    """
    signal.signal(signal.SIGTERM, _interrupt)
    home = _home()
    _furnish(home)
    print(f"home: {home.root}")
    _ensure_image(home)
    session = f"demo-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    started = time.monotonic()
    try:
        _beige(home, "up")
        _beige(home, "prompt", AGENT, PROMPT, "--session", session)
        _beige(home, "audit", "query", "--session", session, "--tree")
    finally:
        _down(home)
    seconds = time.monotonic() - started
    _report(evidence(home, session), home, seconds)


def _home() -> Home:
    if os.environ.get("BEIGE_HOME"):
        return Home.find()
    return Home.find(tempfile.mkdtemp(prefix="beige-demo-"))


def _furnish(home: Home) -> None:
    """Put the demonstration's configuration into the home; ConfigError if it holds another one."""
    home.create()
    if home.config.exists() and not home.config.read_text().startswith(MARK):
        raise ConfigError(
            str(home.config),
            "is not the demonstration's configuration",
            "unset BEIGE_HOME or name an empty directory",
        )
    source = Path(__file__).resolve().parent.parent / "demo"
    for name in ("config.json5", "script.json5"):
        shutil.copyfile(source / name, home.root / name)


def _ensure_image(home: Home) -> None:
    from beige.cli.house import ensure_image

    ensure_image(home, build=True)


def _beige(home: Home, *arguments: str) -> None:
    """Show a command and run it as its user would, its notices in the transcript. Failed if it fails."""
    print(f"\n$ beige {' '.join(_quoted(a) for a in arguments)}", flush=True)
    process = subprocess.Popen(_command(*arguments), env=_environ(home), stderr=subprocess.STDOUT)
    try:
        code = process.wait(STEP_S)
    except BaseException:
        _let_it_clean_up(process)
        raise
    if code != 0:
        raise Failed(f"`beige {arguments[0]}` ended with exit code {code}", executed="maybe")


def _let_it_clean_up(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C reached the command too; a SIGTERM or a timeout did not."""
    process.terminate()
    try:
        process.wait(CLEAN_UP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _down(home: Home) -> None:
    """Whatever happened, nothing keeps running; a second Ctrl-C doesn't stop that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("\n$ beige down", flush=True)
    subprocess.run(_command("down"), env=_environ(home), timeout=120, start_new_session=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "beige.cli", *arguments]


def _environ(home: Home) -> dict[str, str]:
    return {**os.environ, "BEIGE_HOME": str(home.root)}


def _quoted(argument: str) -> str:
    return f'"{argument}"' if " " in argument else argument


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def evidence(home: Home, session: str) -> Evidence:
    """Read from the log on disk, not from what anybody said."""
    from beige.auditlog import records_backwards

    mine = [r for r in records_backwards(home.audit_log, READ_BYTES) if r.session == session]
    execs = {r.id for r in mine if r.type == "core_tool" and r.tool == "exec"}
    phases: dict[str, set[str]] = {}
    for record in mine:
        if record.type == "tool" and record.tool == TOOL and record.parent in execs:
            phases.setdefault(record.id, set()).add(record.phase)
    complete = sum(1 for seen in phases.values() if seen == {"started", "finished"})
    denials = [r.error for r in mine if r.decision == "denied"]
    return Evidence(complete, denials, len(mine))


def _report(found: Evidence, home: Home, seconds: float) -> None:
    print(f"\n{found.kv_calls} of {CALLS} kv calls are in the audit log, each started and finished,")
    print("each under the exec that caused it.")
    for reason in found.denials:
        print(f"denied: {reason}")
    print(f"{found.records} records: {home.audit_log}")
    print(f"The run took {seconds:.1f} s, from `beige up` to `beige down`.")
    if not found.complete:
        raise Failed("the audit log does not show what the demonstration claims", executed="maybe")
