"""Decides which environment variables each process gets, and keeps them in run/env/<program>.json."""

from __future__ import annotations

import json
import os
import shutil
import site
from collections.abc import Iterable, Mapping
from pathlib import Path

from beige.keys import write_private
from beige.paths import Home, private_directory

BASE = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""What any process may know of the operator's environment."""

_OUTGOING = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
    "http_proxy", "https_proxy", "no_proxy", "all_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
)  # fmt: skip
OWN: dict[str, tuple[str, ...]] = {
    "sandbox": ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH",
                "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK"),
    "llm": _OUTGOING,
    "tools": _OUTGOING,
    "channels": _OUTGOING,
    "egress": _OUTGOING,
}  # fmt: skip
"""What a program needs beyond that for its one power: Docker, or connections to the outside."""

Environments = dict[str, dict[str, str]]


def environments(
    home: Home, variables: Mapping[str, Iterable[str]], environ: Mapping[str, str]
) -> Environments:
    """The environment of each program in `variables` (program to the names its configuration uses)."""
    return {
        program: _ours(home)
        | {name: environ[name] for name in (*BASE, *OWN.get(program, ()), *sorted(names)) if name in environ}
        for program, names in variables.items()
    }


def directory(home: Home) -> Path:
    return home.run / "env"


def write(home: Home, wanted: Environments) -> None:
    private_directory(directory(home))
    for program, environment in wanted.items():
        text = json.dumps(environment, indent=1, ensure_ascii=False)
        write_private(directory(home) / f"{program}.json", os.fsencode(text))


def read(home: Home) -> Environments:
    """What was last written; empty where nothing is."""
    found: Environments = {}
    for path in directory(home).glob("*.json"):
        found[path.stem] = json.loads(os.fsdecode(path.read_bytes()))
    return found


def remove(home: Home) -> None:
    """Forget the values: they are needed only while the processes run."""
    shutil.rmtree(directory(home), ignore_errors=True)


def known_before(home: Home) -> dict[str, str]:
    """Every variable some process was started with: a restart from another terminal keeps them."""
    return {name: value for environment in read(home).values() for name, value in environment.items()}


def minimal(home: Home, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of supervisord and of helper processes: nothing secret."""
    return _ours(home) | {name: environ[name] for name in BASE if name in environ}


def helper(home: Home, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that talks to Docker and fetches packages: the image builder."""
    names = (*OWN["sandbox"], *_OUTGOING)
    return minimal(home, environ) | {name: environ[name] for name in names if name in environ}


def _ours(home: Home) -> dict[str, str]:
    """The home and, in a checkout that is not installed, where our packages are: processes start with
    `-P`, so neither their working directory nor anything an agent can write is ever imported."""
    source = Path(__file__).resolve().parents[2]
    installed = source in (Path(path).resolve() for path in site.getsitepackages())
    return {"BEIGE_HOME": str(home.root)} | ({} if installed else {"PYTHONPATH": str(source)})
