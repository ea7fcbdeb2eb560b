"""Where things stand on disk. The only module that knows the layout of `$BEIGE_HOME`.

config.json5            keys/                  one secret per process, 0600
agents/<name>/workspace data/                  state of policy and plugins
agents/<name>/launchers sessions/<agent>/      conversations
sockets/<agent>.sock    logs/audit.jsonl       logs/<service>.log
run/                    sockets, supervisord, per-program environments
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from beige.errors import ConfigError

MAX_SOCKET_PATH = 107
"""Linux's sun_path holds 108 bytes with the final NUL."""
_LONGEST_BELOW_RUN = len("/agents/") + 32 + len("/gateway.sock")


@dataclass(frozen=True)
class Home:
    """One beige installation's directory."""

    root: Path

    @classmethod
    def find(cls, override: str | os.PathLike[str] | None = None) -> Home:
        """`override`, else `$BEIGE_HOME`, else `~/.beige`; always absolute."""
        chosen = override or os.environ.get("BEIGE_HOME") or Path.home() / ".beige"
        root = Path(chosen).expanduser().absolute()
        if any(c in str(root) for c in "\n\0"):
            raise ConfigError("BEIGE_HOME", f"{str(root)!r} holds a newline", "choose another directory")
        return cls(root)

    @property
    def config(self) -> Path:
        return self.root / "config.json5"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.jsonl"

    @property
    def sessions(self) -> Path:
        return self.root / "sessions"

    def workspace(self, agent: str) -> Path:
        return self.root / "agents" / agent / "workspace"

    def launchers(self, agent: str) -> Path:
        """Generated tool launchers, mounted read-only at /tools/bin."""
        return self.root / "agents" / agent / "launchers"

    def packages(self, agent: str) -> Path:
        """Documentation of the agent's tools, mounted read-only at /tools/packages."""
        return self.root / "agents" / agent / "packages"

    @property
    def run(self) -> Path:
        """Sockets and pid files. Below the home if socket paths fit there; else a short private
        directory in /tmp, derived from the home's path so that every process finds the same one."""
        below = self.root / "run"
        if len(os.fsencode(below)) + _LONGEST_BELOW_RUN <= MAX_SOCKET_PATH:
            return below
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return Path(f"/tmp/beige-{os.getuid()}-{digest}")  # noqa: S108 - created 0700, owner checked

    def agent_sockets(self, agent: str) -> Path:
        """The directory mounted at /run/beige: `gateway.sock` (bridge) and `exec.sock` (sandbox).
        The directory, not the files, is mounted, so a restarted listener is reachable again."""
        return self.run / "agents" / agent

    def gateway_socket(self, agent: str) -> Path:
        return self.agent_sockets(agent) / "gateway.sock"

    def egress_socket(self, agent: str) -> Path:
        """Only of an agent that has egress: the bridge's proxy."""
        return self.agent_sockets(agent) / "egress.sock"

    def exec_socket(self, agent: str) -> Path:
        return self.agent_sockets(agent) / "exec.sock"

    def socket_link(self, agent: str) -> Path:
        """The seed's name for an agent's socket; a symlink to `gateway_socket`."""
        return self.root / "sockets" / f"{agent}.sock"

    @property
    def bus_socket(self) -> Path:
        return self.run / "bus.sock"

    @property
    def bus_endpoint(self) -> str:
        return f"ipc://{self.bus_socket}"

    @property
    def tap_feed_endpoint(self) -> str:
        """Broker to tap: unredacted copies; only the tap process may connect."""
        return f"ipc://{self.run / 'tap-feed.sock'}"

    @property
    def tap_endpoint(self) -> str:
        """Tap to operators: redacted copies."""
        return f"ipc://{self.run / 'tap.sock'}"

    @property
    def http_tokens(self) -> Path:
        """Digests of the HTTP API's tokens (`beige.tokens`)."""
        return self.keys / "http-tokens.json"

    @property
    def http_token(self) -> Path:
        """The token made at set-up, for this user's own clients."""
        return self.keys / "http-token"

    @property
    def openai_conversations(self) -> Path:
        """Which session a conversation of an OpenAI client is: digests, kept by the gateway."""
        return self.data / "openai-conversations.sqlite3"

    @property
    def http_socket(self) -> Path:
        """Where the gateway serves HTTP beside its TCP address."""
        return self.run / "gateway-http.sock"

    @property
    def http_address(self) -> Path:
        """A line of text, written by the gateway: the URL it serves at now; absent if it doesn't."""
        return self.run / "gateway-http.url"

    def create(self) -> None:
        """Make every directory, private to the user. Idempotent."""
        for path in (self.root, self.keys, self.data, self.logs, self.sessions, self.root / "agents",
                     self.root / "sockets", self.run, self.run / "agents"):  # fmt: skip
            private_directory(path)


def private_directory(path: Path, mode: int = 0o700) -> None:
    """Create `path` with `mode`, or check that an existing one is ours and not a symlink.

    Stops a local attacker who made the directory first (the /tmp fallback of `Home.run`).
    """
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise ConfigError(
            str(path), "is not a directory of this user", "remove it or choose another BEIGE_HOME"
        )
    if stat.S_IMODE(info.st_mode) != mode:
        path.chmod(mode)


def _shipped(name: str) -> Path:
    """`name` in a checkout, or its copy inside the installed wheel."""
    checkout = Path(__file__).resolve().parent.parent / name
    return checkout if checkout.is_dir() else Path(__file__).resolve().parent / f"_{name}"


def image_dir() -> Path:
    return _shipped("image")


def bundled_plugins_dir() -> Path:
    return _shipped("plugins")
