"""Verdict and receipt hold for exactly one request."""

import pytest

from beige import seals
from beige.errors import Denied
from beige.wire import Header

KEY, OTHER = b"k" * 32, b"o" * 32
HEADER = Header(
    call="e-1", service="tools", method="call", agent="travel", session="s", channel="c", src="bridge/0"
)


def digest(body=b"body", **changes):
    fields = {name: getattr(HEADER, name) for name in Header.__struct_fields__} | changes
    return seals.request_digest(Header(**fields), body)


def test_an_honest_verdict_is_read():
    seal = seals.sign_verdict(KEY, digest(), False, "because")
    verdict = seals.read_verdict(KEY, digest(), seal)
    assert (verdict.allowed, verdict.reason) == (False, "because")


@pytest.mark.parametrize(
    "other",
    [
        {"call": "e-2"}, {"parent_call": "e-0"}, {"service": "sandbox"}, {"method": "exec"}, {"agent": "x"},
        {"session": "x"}, {"channel": "x"}, {"src": "cli/0"}, {"idem": "again"}, {"body": b"other"},
    ],
    ids=str,
)  # fmt: skip
def test_a_verdict_and_receipt_for_another_request_are_refused(other):
    verdict = seals.sign_verdict(KEY, digest(**other), True)
    receipt = seals.sign_receipt(KEY, digest(**other), verdict)
    with pytest.raises(Denied):
        seals.read_verdict(KEY, digest(), verdict)
    with pytest.raises(Denied):
        seals.check_receipt(KEY, digest(), verdict, receipt)


def test_a_denial_cannot_be_turned_into_an_allowance():
    seal = seals.sign_verdict(KEY, digest(), False, "no")
    flipped = seal.replace(b"\xc2", b"\xc3", 1)
    assert flipped != seal
    with pytest.raises(Denied):
        seals.read_verdict(KEY, digest(), flipped)


def test_another_key_is_refused():
    verdict = seals.sign_verdict(OTHER, digest(), True)
    with pytest.raises(Denied):
        seals.read_verdict(KEY, digest(), verdict)
    with pytest.raises(Denied):
        seals.check_receipt(KEY, digest(), verdict, seals.sign_receipt(OTHER, digest(), verdict))


@pytest.mark.parametrize(
    "seal", [b"", b"\x93\xc3\xa0", b"\xff" * 64, b"\x91" * 900], ids=["none", "cut", "junk", "deep"]
)
def test_an_unreadable_verdict_is_a_denial(seal):
    with pytest.raises(Denied):
        seals.read_verdict(KEY, digest(), seal)


def test_a_receipt_holds_for_one_verdict():
    first, second = seals.sign_verdict(KEY, digest(), True), seals.sign_verdict(KEY, digest(), True, "x")
    with pytest.raises(Denied):
        seals.check_receipt(KEY, digest(), second, seals.sign_receipt(KEY, digest(), first))
