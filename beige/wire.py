"""The envelope: what every message on the bus looks like, and its limits.

A message is exactly two frames (the broker's ROUTER sees a third, the routing id, in front):

    +--------------------------+---------------------------------------------+
    | header: MessagePack array | body: MessagePack, opaque to the broker      |
    +--------------------------+---------------------------------------------+

`docs/protocol.md` is the authority; `tests/unit/test_wire.py` compares its version with this one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

VERSION = 1

# --- limits (bytes unless named otherwise) -----------------------------------------------------
MAX_HEADER = 8 * 1024
MAX_BODY = 1024 * 1024
MAX_FRAME = MAX_BODY + 64 * 1024
"""libzmq's MAXMSGSIZE: per frame; a bigger frame disconnects its sender, so senders check first."""
CHUNK = 64 * 1024
"""Size of one stream item when bytes are streamed."""
WINDOW_ITEMS = 64
WINDOW_BYTES = 256 * 1024
"""Default credit a stream's receiver grants: whichever runs out first stops the producer."""

# --- times (seconds) ----------------------------------------------------------------------------
HEARTBEAT_S = 1.0
DEAD_AFTER_S = 3.0
DEFAULT_TTL_S = 30.0
MAX_TTL_S = 24 * 3600.0

# --- message types ------------------------------------------------------------------------------
HELLO, WELCOME, CALL, ITEM, REPLY, ERR, CREDIT, CANCEL, HB, RESET, DRAIN, BYE = range(1, 13)

TYPE_NAMES = (
    "", "HELLO", "WELCOME", "CALL", "ITEM", "REPLY", "ERR", "CREDIT", "CANCEL", "HB", "RESET", "DRAIN", "BYE",
)  # fmt: skip

# --- hops of the governed path: which station of the corridor a CALL is for ---------------------
DIRECT, AUTHORIZE, STARTED, EXECUTE, FINISHED = range(5)
HOP_NAMES = ("direct", "authorize", "started", "execute", "finished")

# --- flags --------------------------------------------------------------------------------------
EXECUTED_MAYBE = 1
"""On ERR: the call may have been executed. Absent: it was not."""
END = 2
"""On ITEM: the sender's side of the stream is complete."""
TO_WORKER = 4
"""On ITEM and CREDIT: sent by the caller towards the executor. Ids of calls made and of calls served
are different number spaces; this says which one `id` is from."""

Name = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=256)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Seal = Annotated[bytes, Meta(max_length=1024)]


class ModelUse(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """What policy says a model call came to, for its audit record."""

    state: Name = ""
    """`answered`, `failed`, `cooling` (not called), `denied` (not called: the budget), `unreported`."""
    kind: Name = ""
    """Failed: what went wrong, as `LeaseReport.kind`."""
    status: Count | None = None
    """Failed: the HTTP status."""
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    cost_nano: Count | None = None
    """Nano-dollars counted towards the budgets; None: the model has no price."""


class HookUse(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """What a plugin's hook made of a text, for its audit record."""

    state: Name = ""
    """As `HookResult.state`."""
    digest: Name = ""
    """Replaced: SHA-256 of the new text, in hex."""


class Outcome(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """What an executor says happened, for the audit record. Rides in the REPLY or ERR header."""

    exit_code: int | None = None
    output_bytes: Count = 0
    error: Text = ""
    duration_ms: float = 0.0
    """Time in the executor, set by the worker library."""
    target: Name = ""
    """Where a tool ran: `gateway` or `sandbox`."""
    input_bytes: Count = 0
    """Egress: bytes that went out; what came in is `output_bytes`."""
    model: ModelUse | None = None
    """Of a `policy.lease`."""
    hook: HookUse | None = None
    """Of a `tools.hook`."""


class Header(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Fields up to `outcome` are the sender's; the broker overwrites every one after it."""

    v: int = VERSION
    type: int = 0
    id: Count = 0
    """Chosen by the caller, unique in its session. Towards a worker: the broker's own number."""
    service: Name = ""
    method: Name = ""
    ttl_ms: Count = 0
    """Time left in milliseconds, so that peers need no common clock."""
    key: Text = ""
    """Affinity: calls with one key go to one worker while it lives."""
    idem: Text = ""
    """Idempotency key: allows the broker to dispatch again after a worker died."""
    credit: Count = 0
    """CALL, CREDIT: stream items the receiver may send. HELLO: calls served at once."""
    credit_bytes: Count = 0
    parent: Count = 0
    """The call being served that causes this one (its id as the worker knows it), 0 for none."""
    token: Text = ""
    """Bridge to broker: the call token presented from inside. Broker to executor: the token issued."""
    agent: Text = ""
    session: Text = ""
    channel: Text = ""
    trace: Text = ""
    flags: Count = 0
    code: Name = ""
    """ERR: the error's code (`beige.errors`)."""
    outcome: Outcome | None = None
    # --- written by the broker alone (verdict and receipt: taken over from policy and audit) ------
    src: Text = ""
    """The authenticated user of the call's source, `role/instance`."""
    hop: Count = 0
    attempt: Count = 0
    epoch: Count = 0
    """Random number of this broker's life."""
    call: Text = ""
    """The call's name for the audit log: unique across broker restarts, the same at each hop."""
    parent_call: Text = ""
    verdict: Seal = b""
    receipt: Seal = b""


class ErrorBody(Struct, array_like=True, forbid_unknown_fields=True):
    """Body of an ERR."""

    message: Annotated[str, Meta(max_length=4096)]


encode_header = msgspec.msgpack.Encoder().encode
decode_header = msgspec.msgpack.Decoder(Header).decode
encode_body = msgspec.msgpack.Encoder().encode
_error_body = msgspec.msgpack.Decoder(ErrorBody)

DECODE_ERRORS = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""Everything hostile bytes can raise in a decoder; deep nesting raises RecursionError."""


def error_body(message: str) -> bytes:
    return encode_body(ErrorBody(message[:4096]))


def decode_error_body(body: bytes) -> str:
    try:
        return _error_body.decode(body).message
    except DECODE_ERRORS:
        return "(unreadable error)"
