"""Decides what the audit log says about a call: header and body in, record out. Pure.

The header is the broker's word (agent, session, source); the body is the agent's and may hold
anything, so everything taken from it is bounded here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from beige.auditlog import Record
from beige.destinations import Destination
from beige.errors import Malformed
from beige.messages import GOVERNED, METHODS
from beige.messages.egress import ConnectRequest
from beige.messages.policy import LeaseRequest
from beige.messages.sandbox import ExecRequest, PatchRequest, ReadRequest, WriteRequest
from beige.messages.tools import HookCall, ToolCall
from beige.money import COUNTED, usd
from beige.unseen import escape_json
from beige.wire import DECODE_ERRORS, Header, HookUse, ModelUse, Outcome

ARGS_LIMIT = 32 * 1024
"""Bytes of encoded arguments in a record; with the other fields' limits a line stays below
`auditlog.MAX_LINE`, also when every character needs a six byte escape."""
DIGEST_DIGITS = 32
TYPES: dict[str, Literal["core_tool", "tool", "egress", "model_call", "hook"]] = {
    "tools.call": "tool", "tools.hook": "hook", "egress.connect": "egress", "policy.lease": "model_call",
}  # fmt: skip
"""By method; the sandbox's calls are core tools."""
MODEL = "model"
"""The tool of a model call's record."""

_DECODERS = {name: msgspec.msgpack.Decoder(METHODS[name].request) for name in GOVERNED}


def started(header: Header, body: bytes, ts: str, digest: bytes, rule: str = "") -> Record:
    """The record written before a call is executed. Malformed if the body is not the method's. `rule`:
    policy's word on why it allowed a connection."""
    record = _named(header, ts)
    record.digest = _digits(digest.hex())
    match _decoded(f"{header.service}.{header.method}", body):
        case ExecRequest() as request:
            record.args = cut(request.argv or [request.command])
            record.input_bytes = len(request.stdin) or None
        case WriteRequest() as request:
            record.args = cut([request.path])
            record.input_bytes = request.size if request.content is None else len(request.content)
        case ReadRequest() | PatchRequest() as request:
            record.args = cut([request.path])
        case ToolCall() as request:
            record.tool, record.args = request.tool, cut(request.args)
        case HookCall() as request:
            text = request.text.encode()
            record.tool, record.args = request.hook, [request.plugin]
            record.input_bytes, record.text_digest = len(text), _digits(hashlib.sha256(text).hexdigest())
        case ConnectRequest() as request:
            record.args = cut([str(Destination(request.host, request.port)), request.method])
            record.rule = rule
        case LeaseRequest() as request:
            record.args = cut([f"{request.provider}/{request.model}"])
    return record


def denied(header: Header, body: bytes, ts: str, digest: bytes, reason: str) -> Record:
    """The only record of a call that policy refused."""
    record = started(header, body, ts, digest)
    record.decision, record.phase, record.error = "denied", "finished", reason
    return record


def finished(opening: Record, header: Header, ts: str, elapsed_ms: float) -> Record:
    """The record that closes `opening`, from the outcome the executor reported, if it could.

    `elapsed_ms` is the time since the start was recorded, used when no executor measured any.
    """
    record = _closing(opening, ts)
    outcome = header.outcome or Outcome()
    record.error = _error(header.code, outcome.error)
    record.duration_ms = round(outcome.duration_ms or elapsed_ms, 3)
    record.exit_code = outcome.exit_code
    if record.type == "model_call":
        _add_use(record, outcome.model or ModelUse())
    elif record.type == "hook":
        record.output_bytes = outcome.output_bytes if outcome.hook and outcome.hook.digest else None
    elif not header.code or record.type == "egress":  # a connection cut off has carried bytes too
        record.output_bytes = outcome.output_bytes
    if record.type == "egress":
        record.input_bytes = outcome.input_bytes
    if record.type == "hook":
        _add_hook(record, outcome.hook or HookUse())
    if record.type == "tool" and outcome.target:
        record.target = outcome.target
    return record


def _add_hook(record: Record, use: HookUse) -> None:
    record.kind, record.text_digest = use.state, _digits(use.digest)


def _digits(digest: str) -> str:
    return digest[:DIGEST_DIGITS]


def _add_use(record: Record, use: ModelUse) -> None:
    record.decision = "denied" if use.state == "denied" else "allowed"
    record.kind, record.status, record.cost_usd = use.kind, use.status, usd(use.cost_nano)
    record.usage = {name: tokens for name in COUNTED if (tokens := getattr(use, name))}


def abandoned(opening: Record, ts: str, error: str) -> Record:
    """The record that closes `opening` when nobody is left who could say what happened."""
    record = _closing(opening, ts)
    record.error = error
    return record


def unopened(header: Header, ts: str) -> Record:
    """Stands in for the opening of a call whose start this log doesn't have; arguments are unknown."""
    return _named(header, ts)


def cut(args: Iterable[str], limit: int = ARGS_LIMIT) -> list[str]:
    """The arguments, shortened so that their JSON takes at most about `limit` bytes, with a marker
    that says how much was left out."""
    kept: list[str] = []
    rest = list(args)
    for index, arg in enumerate(rest):
        size = encoded_size(arg) + 1
        if size > limit:
            if limit > 128 or not kept:
                kept.append(_head(arg, limit))
                index += 1
            if index < len(rest):
                kept.append(f"…[{len(rest) - index} more arguments cut]")
            break
        kept.append(arg)
        limit -= size
    return kept


def encoded_size(text: str) -> int:
    return len(escape_json(msgspec.json.encode(text)))


def _head(text: str, limit: int) -> str:
    low, high = 0, min(len(text), limit)
    while low < high:
        middle = (low + high + 1) // 2
        if encoded_size(text[:middle]) <= limit:
            low = middle
        else:
            high = middle - 1
    return f"{text[:low]}…[{len(text) - low} more characters cut]"


def _named(header: Header, ts: str) -> Record:
    kind = TYPES.get(f"{header.service}.{header.method}", "core_tool")
    return Record(
        ts=ts,
        agent=header.agent,
        type=kind,
        tool={"tool": "unknown", "model_call": MODEL}.get(kind, header.method),
        args=[],
        decision="allowed",
        target="gateway" if kind == "tool" else "",
        phase="started",
        id=header.call,
        parent=header.parent_call,
        session=header.session,
        channel=header.channel,
        src=header.src,
    )


def _closing(opening: Record, ts: str) -> Record:
    return msgspec.structs.replace(opening, ts=ts, phase="finished", digest="", text_digest="")


def _error(code: str, said: str) -> str:
    if not code or said.startswith(code):
        return said
    return f"{code}: {said}" if said else code


def _decoded(method: str, body: bytes) -> Any:
    decoder = _DECODERS.get(method)
    if decoder is None:
        raise Malformed(f"{method} is not a governed method")
    try:
        return decoder.decode(body)
    except DECODE_ERRORS as error:
        raise Malformed(f"{method}: {error}") from None
