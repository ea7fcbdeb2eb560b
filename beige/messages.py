"""Typed bodies: one request, item and reply type per method, and which methods are governed.

Bodies are MessagePack maps; an unknown or wrong field is an error that names it. The broker never
imports this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

Path = Annotated[str, Meta(min_length=1, max_length=4096)]
Argument = Annotated[str, Meta(max_length=512 * 1024)]
INLINE_LIMIT = 512 * 1024
"""Content above this many bytes is streamed in chunks of `wire.CHUNK`, not carried in the body."""


class Body(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all bodies."""


# --- sandbox: the four core tools ----------------------------------------------------------------


class ExecRequest(Body):
    """Run `command` with `bash -c` in the agent's container, or `argv` as it is when given."""

    command: Argument = ""
    argv: Annotated[list[Argument], Meta(max_length=4000)] = []
    cwd: Annotated[str, Meta(max_length=4096)] = "/workspace"
    env: dict[str, str] = {}
    timeout_s: Annotated[float, Meta(ge=0)] = 0.0
    """0: the agent's configured deadline."""
    stdin: bytes = b""


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


# --- sandbox: operator methods (direct, not governed) ---------------------------------------------


class AgentRef(Body):
    """The agent is named in the header; these calls need nothing else."""


class SandboxInfo(Body):
    agent: str
    container: str = ""
    state: str = ""
    image: str = ""
    profile: str = ""
    executor: str = ""
    """`init` (the executor) or `docker-exec` (fallback)."""
    created: str = ""


class SandboxList(Body):
    sandboxes: list[SandboxInfo]


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


class SandboxView(Body):
    info: SandboxInfo
    runtime: str
    limits: dict[str, str]
    """From the configuration."""
    flags: list[SandboxFlag]


# --- tools -----------------------------------------------------------------------------------------


class ToolCall(Body):
    tool: Annotated[str, Meta(min_length=1, max_length=64)]
    args: Annotated[list[Argument], Meta(max_length=4000)] = []
    cwd: Annotated[str, Meta(max_length=4096)] = ""


class ToolResult(Body):
    success: bool
    output: str = ""
    error: str = ""
    exit_code: int = 0


# --- llm --------------------------------------------------------------------------------------------


class PromptRequest(Body):
    """Agent, session and channel are in the header."""

    text: Annotated[str, Meta(min_length=1, max_length=512 * 1024)]


class PromptEvent(Body):
    """One thing that happened in a turn, in order.

    kind                fields used
    notice              text (e.g. that the model is scripted)
    text_delta          text
    thinking_delta      text
    tool_start          tool_id, tool, args (the call's arguments, for people)
    tool_output         tool_id, stream, text (live output of exec)
    tool_end            tool_id, tool, text (what the model gets, cut), exit_code, is_error, duration_ms
    message_end         model, usage
    model_fallback      text (what failed and why), model (the one tried next); an answer that was under
                        way is void, the next one replaces it
    """

    kind: Literal[
        "notice", "text_delta", "thinking_delta", "tool_start", "tool_output", "tool_end",
        "message_end", "model_fallback",
    ]  # fmt: skip
    text: str = ""
    tool_id: str = ""
    tool: str = ""
    args: dict[str, Any] = {}
    stream: str = ""
    exit_code: int | None = None
    is_error: bool = False
    duration_ms: float = 0.0
    model: str = ""
    usage: dict[str, int] = {}


class PromptResult(Body):
    session: str
    text: str
    """The final answer."""
    stop_reason: str
    model: str
    """`provider/model`."""
    scripted: bool = False
    """True when a script, not a language model, spoke."""
    tool_calls: int = 0
    usage: dict[str, int] = {}


# --- policy: leases for model calls (direct, only for an llm worker, for the agent it serves) ------


class LeaseRequest(Body):
    """May one call be made to this model? A slot of its provider is held until a `LeaseReport` is
    streamed up, or the call is cancelled."""

    provider: Annotated[str, Meta(min_length=1, max_length=256)]
    model: Annotated[str, Meta(min_length=1, max_length=256)]


class LeaseItem(Body):
    state: Literal["waiting", "granted"]
    ahead: int = 0
    """Waiting: calls that come before this one."""


class LeaseReport(Body):
    """The one item up: how the model call went."""

    outcome: Literal["answered", "failed"]
    kind: Annotated[str, Meta(max_length=64)] = ""
    """Failed: what went wrong (`services.llm.providers.failures.Kind`)."""
    status: int | None = None
    """Failed: the HTTP status, if the provider answered with one."""
    retry_after_s: Annotated[float, Meta(ge=0)] | None = None
    """Failed: the provider's own word."""


class LeaseResult(Body):
    granted: bool
    cooling_s: float = 0.0
    """The model must not be called for so many seconds: why it was not granted, or what came of
    the report."""
    reason: str = ""


# --- bus (served by the broker itself) -------------------------------------------------------------


class Empty(Body):
    pass


class PeerInfo(Body):
    user: str
    service: str
    capacity: int
    in_flight: int
    queued: int
    age_s: float
    pid: int = 0


class BusStats(Body):
    epoch: int
    uptime_s: float
    pending: int
    peers: list[PeerInfo]
    counters: dict[str, int]
    queues: dict[str, int]


class TapRequest(Body):
    """Sent by the tap when its subscribers change."""

    on: bool
    bodies: bool = False


# --- table -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    request: type[Any]
    reply: type[Any]
    item: type[Any] | None = None
    """Type of downstream items; `bytes` means raw chunks."""


METHODS: dict[str, Method] = {
    "sandbox.exec": Method(ExecRequest, ExecResult, ExecItem),
    "sandbox.read": Method(ReadRequest, ReadResult, bytes),
    "sandbox.write": Method(WriteRequest, WriteResult),
    "sandbox.patch": Method(PatchRequest, PatchResult),
    "sandbox.ensure": Method(AgentRef, SandboxInfo),
    "sandbox.list": Method(Empty, SandboxList),
    "sandbox.remove": Method(AgentRef, SandboxInfo),
    "sandbox.show": Method(AgentRef, SandboxView),
    "sandbox.verify": Method(VerifyRequest, VerifyResult, ProbeResult),
    "tools.call": Method(ToolCall, ToolResult),
    "llm.prompt": Method(PromptRequest, PromptResult, PromptEvent),
    "policy.lease": Method(LeaseRequest, LeaseResult, LeaseItem),
    "bus.stats": Method(Empty, BusStats),
    "bus.tap": Method(TapRequest, Empty),
}

GOVERNED = frozenset({"sandbox.exec", "sandbox.read", "sandbox.write", "sandbox.patch", "tools.call"})
"""Calls that walk policy, audit, executor, audit. The broker's route table must say the same
(`tests/unit/test_routes.py`)."""

CORE_TOOLS = ("read", "write", "patch", "exec")


def encode(body: Any) -> bytes:
    return msgspec.msgpack.encode(body)
