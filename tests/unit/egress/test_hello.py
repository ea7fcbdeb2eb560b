"""Which server a TLS client asks for, whoever wrote its bytes."""

import os
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.egress.hello import MAX_HELLO, Hello


def client_hello(name, **settings):
    """What Python's own client sends first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    for key, value in settings.items():
        setattr(context, key, value)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def judged(data, host="a.example", port=443):
    hello = Hello(host, port)
    hello.feed(data)
    assert hello.done
    return hello.wrong


def records(hello, size):
    """The same ClientHello in TLS records of `size` bytes."""
    body = hello[5:]
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


CASES = {
    "the same": ("a.example", "a.example", ""),
    "in another case, with a final dot": ("A.Example.", "a.example", ""),
    "another": ("b.example", "a.example", "TLS for 'b.example'"),
    "a sub-name": ("x.a.example", "a.example", "TLS for 'x.a.example'"),
    "none for a name": (None, "a.example", "TLS that names no server"),
    "none for an address": (None, "192.0.2.1", ""),
    "a name for an address": ("a.example", "192.0.2.1", "TLS for 'a.example'"),
}


@pytest.mark.parametrize(("asked", "host", "wrong"), CASES.values(), ids=CASES)
def test_the_name_must_be_the_one_policy_was_asked_about(asked, host, wrong):
    assert judged(client_hello(asked), host) == wrong


def test_in_whatever_pieces_it_comes():
    for data in (client_hello("b.example"), records(client_hello("b.example"), 50)):
        hello = Hello("a.example", 443)
        for byte in data:
            if not hello.done:
                hello.feed(bytes([byte]))
        assert hello.wrong == "TLS for 'b.example'"


def test_an_older_version_of_tls():
    data = client_hello("b.example", maximum_version=ssl.TLSVersion.TLSv1_2)
    assert judged(data) == "TLS for 'b.example'"


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b"GET / HTTP/1.1\r\n", "no TLS"),
        (b"\x16\x03\x01\x00\x05hello", "no ClientHello"),
        (b"\x80\x2e\x01", "no TLS"),
    ],
)
def test_something_else_on_the_port_of_tls(data, wrong):
    assert judged(data) == wrong


def test_other_ports_may_carry_something_else_but_no_tls_for_another():
    assert judged(b"SSH-2.0-OpenSSH\r\n", port=22) == ""
    assert judged(client_hello("b.example"), port=8443) == "TLS for 'b.example'"


def test_an_unending_hello_is_given_up():
    hello = Hello("a.example", 443)
    fragment = b"\x16\x03\x01\x40\x00" + b"\x01\x01\xff\xff" + b"\x03\x03" + os.urandom(0x3FFA)
    fed = 0
    while not hello.done:
        hello.feed(fragment)
        fed += len(fragment)
        assert fed <= MAX_HELLO + len(fragment)
    assert hello.wrong


@given(st.binary(min_size=1, max_size=2000), st.booleans())
def test_no_bytes_break_it_and_none_pass_as_the_right_name(data, handshake):
    hello = Hello("a.example", 443)
    hello.feed(b"\x16\x03\x01" + data if handshake else data)
    assert not hello.done or hello.wrong
