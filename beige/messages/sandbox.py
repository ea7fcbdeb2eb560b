"""Bodies of `sandbox.*`: the four core tools, and what operators ask for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from beige.messages.base import INLINE_LIMIT, AgentRef, Argument, Body, Empty, Method, Path


class ExecRequest(Body):
    """Run `command` with `bash -c` in the agent's container, or `argv` as it is when given."""

    command: Argument = ""
    argv: Annotated[list[Argument], Meta(max_length=4000)] = []
    cwd: Annotated[str, Meta(max_length=4096)] = "/workspace"
    env: dict[str, str] = {}
    timeout_s: Annotated[float, Meta(ge=0)] = 0.0
    """0: the agent's configured deadline."""
    stdin: bytes = b""
    stdin_follows: bool = False
    """Standard input is streamed up instead, until its end or the command's; neither is in the audit log."""


class ExecItem(Body):
    """Live output, sent only when the caller granted credit."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class ExecResult(Body):
    exit_code: int
    """The command's; 128 + signal when it was killed (124: timed out)."""
    stdout: bytes = b""
    stderr: bytes = b""
    """What was kept: the head up to the limit and, if more was produced, the tail after a notice."""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    """What was produced."""
    stdout_cut: int = 0
    stderr_cut: int = 0
    """Bytes left out between head and tail."""
    timed_out: bool = False
    duration_ms: float = 0.0


class ReadRequest(Body):
    path: Path
    offset: Annotated[int, Meta(ge=1)] = 1
    """First line, counted from 1."""
    limit: Annotated[int, Meta(ge=0)] = 0
    """Number of lines; 0: up to the default."""


class ReadResult(Body):
    """Content above `INLINE_LIMIT` is sent as items (raw bytes) and `content` is empty."""

    kind: Literal["text", "image", "binary"]
    content: bytes = b""
    streamed: bool = False
    media_type: str = ""
    size: int = 0
    """Bytes of the whole file."""
    first_line: int = 1
    lines: int = 0
    """Lines returned."""
    notice: str = ""
    """What was left out, in words for the model; empty when nothing was."""


class WriteRequest(Body):
    """Small content rides in `content`; bigger content is streamed up after admission, and the
    call carries its `size` and `sha256` (hex), which the sandbox checks before the file is moved
    into place."""

    path: Path
    content: Annotated[bytes, Meta(max_length=INLINE_LIMIT)] | None = None
    size: Annotated[int, Meta(ge=0, le=2 * 1024**3)] = 0
    sha256: Annotated[str, Meta(max_length=64)] = ""


class WriteResult(Body):
    size: int
    created: bool


class PatchRequest(Body):
    """Replace the one occurrence of `old`. None, or more than one without `all`, is an error."""

    path: Path
    old: Annotated[str, Meta(min_length=1, max_length=256 * 1024)]
    new: Annotated[str, Meta(max_length=256 * 1024)]
    all: bool = False


class PatchResult(Body):
    replacements: int
    first_line: int = 0


class SandboxInfo(Body):
    agent: str
    container: str = ""
    state: str = ""
    image: str = ""
    profile: str = ""
    executor: str = ""
    """`init` (the executor) or `docker-exec` (fallback)."""
    runtime: str = ""
    """Of the container there is, in the engine's word: `runc`, `runsc` (gVisor), ..."""
    created: str = ""


class SandboxList(Body):
    sandboxes: list[SandboxInfo]


class LogsRequest(Body):
    lines: Annotated[int, Meta(ge=1, le=10000)] = 100
    """The last ones of what the container's first process printed."""


class SandboxLogs(Body):
    """What a container printed, and what is known of its executor. Makes no container."""

    info: SandboxInfo
    log: bytes
    """The agent's processes can't write there, but an image's first process may print anything."""
    started: str = ""
    finished: str = ""
    exit_code: int = 0
    out_of_memory: bool = False
    """The kernel killed the first process for the container's memory limit (or, long after, when the engine
    has forgotten: something in the container)."""
    running: int = 0
    """Commands that have not ended."""
    refused: int = 0
    """Connections to the executor's socket that were not the executor's."""
    last_lost: str = ""
    """Why the executor's last connection ended; empty: it did not."""


class VerifyRequest(Body):
    abuse: bool = False
    """Also use the limits up: processes, memory, /tmp. Other commands of the agent may suffer."""


class ProbeResult(Body):
    """One probe of `sandbox.verify`, in the order they ran."""

    id: str
    side: Literal["inside", "outside"]
    shows: str
    status: Literal["pass", "fail", "skip"]
    expected: str
    seen: str
    """What was seen: from inside, whatever the container said; of a skipped probe, why."""
    number: int
    total: int


class VerifyResult(Body):
    container: str
    runtime: str
    profile: str
    executor: str
    passed: int
    failed: list[str]
    skipped: list[str]
    """Ids."""


class SandboxFlag(Body):
    """One flag of a container; values as in the engine's API, None where that side says nothing."""

    name: str
    wanted: Any = None
    engine: Any = None
    differs: bool = False
    """The two sides disagree, or the engine has what nobody asked for."""


class WorkspaceUsage(Body):
    """Of a workspace with a quota, as its file system says."""

    limit_bytes: int
    used_bytes: int
    limit_files: int
    used_files: int


class SandboxView(Body):
    info: SandboxInfo
    runtime: str
    limits: dict[str, str]
    """From the configuration."""
    flags: list[SandboxFlag]
    workspace: WorkspaceUsage | None = None
    """None: no quota, or not mounted."""
    root_layer_bytes: int | None = None
    """Profile open: what was written outside the workspace, on the engine's disk. None: no container, a root
    that can't be written, or too many files to be counted in ten seconds."""


METHODS = {
    "sandbox.exec": Method(ExecRequest, ExecResult, ExecItem),
    "sandbox.read": Method(ReadRequest, ReadResult, bytes),
    "sandbox.write": Method(WriteRequest, WriteResult),
    "sandbox.patch": Method(PatchRequest, PatchResult),
    "sandbox.ensure": Method(AgentRef, SandboxInfo),
    "sandbox.list": Method(Empty, SandboxList),
    "sandbox.remove": Method(AgentRef, SandboxInfo),
    "sandbox.stop": Method(AgentRef, SandboxInfo),
    "sandbox.logs": Method(LogsRequest, SandboxLogs),
    "sandbox.show": Method(AgentRef, SandboxView),
    "sandbox.verify": Method(VerifyRequest, VerifyResult, ProbeResult),
}
