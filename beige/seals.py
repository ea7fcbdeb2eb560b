"""Verdict and receipt: proof, carried by a call, that it was decided and written down.

Both are MACs over the request's digest, with keys the broker does not hold, so that not even a
broker in hostile hands can make an executor run something policy did not allow or audit did not
record (`tests/attacks/test_forged_seals.py`).
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated

import msgspec

from beige.errors import Denied
from beige.wire import DECODE_ERRORS, Header


class Verdict(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Policy's decision about one call. `mac` covers the request's digest and the decision."""

    allowed: bool
    reason: Annotated[str, msgspec.Meta(max_length=512)]
    mac: bytes


_encode = msgspec.msgpack.encode
_verdict = msgspec.msgpack.Decoder(Verdict)


def request_digest(header: Header, body: bytes) -> bytes:
    """SHA-256 over everything that decides what a call does and for whom."""
    named = _encode(
        [
            header.call,
            header.parent_call,
            header.service,
            header.method,
            header.agent,
            header.session,
            header.channel,
            header.src,
            header.idem,  # it permits a second execution, so a broker must not be able to add it
        ]
    )
    return hashlib.sha256(hashlib.sha256(named).digest() + body).digest()


def sign_verdict(key: bytes, digest: bytes, allowed: bool, reason: str = "") -> bytes:
    reason = reason[:512]
    return _encode(Verdict(allowed, reason, _verdict_mac(key, digest, allowed, reason)))


def read_verdict(key: bytes, digest: bytes, seal: bytes) -> Verdict:
    """The verdict in `seal`. Denied if it is absent, unreadable or not policy's for this request."""
    try:
        verdict = _verdict.decode(seal)
    except DECODE_ERRORS:
        raise Denied("the call carries no readable verdict") from None
    expected = _verdict_mac(key, digest, verdict.allowed, verdict.reason)
    if not hmac.compare_digest(verdict.mac, expected):
        raise Denied("the call's verdict is not policy's")
    return verdict


def sign_receipt(key: bytes, digest: bytes, verdict: bytes) -> bytes:
    return hmac.digest(key, b"receipt\0" + digest + verdict, "sha256")


def check_receipt(key: bytes, digest: bytes, verdict: bytes, receipt: bytes) -> None:
    """Denied if `receipt` does not prove that audit recorded this request with this verdict."""
    if not hmac.compare_digest(receipt, sign_receipt(key, digest, verdict)):
        raise Denied("the call carries no receipt of audit")


def _verdict_mac(key: bytes, digest: bytes, allowed: bool, reason: str) -> bytes:
    return hmac.digest(key, b"verdict\0" + digest + (b"\1" if allowed else b"\0") + reason.encode(), "sha256")
