"""What a proxy request asks for, and what says two things at once."""

import base64

import h11
import pytest

from socket_bridge.proxy_head import Refused, answer_headers, asked, refusal


def request(line, *headers):
    connection = h11.Connection(h11.SERVER)
    connection.receive_data("\r\n".join([f"{line} HTTP/1.1", *headers, "", ""]).encode("latin-1"))
    return connection.next_event()


def onward(line, *headers):
    sent = asked(request(line, *headers)).onward
    return sent.target, [(name.decode(), value.decode()) for name, value in sent.headers]


def test_a_tunnel():
    found = asked(request("CONNECT A.Example.:443", "Host: whatever:1"))
    assert (str(found.destination), found.scheme, found.method, found.onward) == (
        "a.example:443", "connect", "CONNECT", None,
    )  # fmt: skip


TARGETS = {
    "GET http://a.example": (b"/", "a.example:80"),
    "GET http://a.example?q=1": (b"/?q=1", "a.example:80"),
    "GET HTTP://A.example:8080/x?y=/../": (b"/x?y=/../", "a.example:8080"),
    "OPTIONS http://[2001:db8::1]/": (b"/", "[2001:db8::1]:80"),
}


@pytest.mark.parametrize(("line", "expected"), TARGETS.items())
def test_a_plain_request_goes_on_with_its_path_alone(line, expected):
    authority = line.split("//")[1].split("/")[0].split("?")[0]
    found = asked(request(line, f"Host: {authority}"))
    assert (found.onward.target, str(found.destination)) == expected


@pytest.mark.parametrize(
    "line",
    ["GET /", "GET https://a.example/", "GET ftp://a.example/", "GET http://user@a.example/", "GET http:///x",
     "GET http://a.example#f", "GET http://a.example\\@b.example/", "GET http://a.example:0/", "OPTIONS *",
     "CONNECT a.example", "CONNECT a.example:0", "CONNECT 0x7f.1:443", "CONNECT http://a.example:443",
     "CONNECT 2130706433:80", "GET http://0177.0.0.1/", "GET http://a%2eexample/", "GET http://a.example:80:80/"],
)  # fmt: skip
def test_what_is_no_proxy_request_is_refused(line):
    with pytest.raises(Refused) as caught:
        asked(request(line, "Host: a.example"))
    assert caught.value.status == 400


def test_another_host_in_the_header_is_refused():
    with pytest.raises(Refused, match="names another host"):
        asked(request("GET http://a.example/", "Host: b.example"))
    with pytest.raises(Refused, match="names another host"):
        asked(request("GET http://a.example/", "Host: a.example:8080"))
    assert onward("GET http://a.example/", "Host: A.example:80")[1][0] == ("host", "a.example")


def test_two_lengths_are_refused():
    with pytest.raises(Refused, match="two lengths"):
        asked(
            request(
                "POST http://a.example/", "Host: a.example", "Content-Length: 3", "Transfer-Encoding: chunked"
            )
        )


def test_what_is_for_this_hop_stays_here():
    headers = ("Host: a.example", "Proxy-Authorization: Basic eDp5", "Proxy-Connection: keep-alive",
               "TE: trailers", "Connection: keep-alive, X-Hop, Content-Length", "X-Hop: 1", "Upgrade: h2c",
               "Keep-Alive: 5", "Content-Length: 3", "X-Stays: 1", "Authorization: Bearer stays")  # fmt: skip
    assert onward("POST http://a.example/", *headers)[1] == [
        ("host", "a.example"), ("content-length", "3"), ("x-stays", "1"), ("authorization", "Bearer stays"),
        ("connection", "close"),
    ]  # fmt: skip


def basic(text):
    return f"Proxy-Authorization: Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("header", "token"),
    [(basic("call:abc"), "abc"), (basic("other:abc"), ""), ("Proxy-Authorization: Basic !!", ""),
     ("X: y", ""), ("Proxy-Authorization: Bearer abc", ""), (basic("call:" + "x" * 300), ""),
     (basic("call:\xe9"), "")],
)  # fmt: skip
def test_the_call_token_is_read_from_the_proxys_password(header, token):
    assert asked(request("CONNECT a.example:443", "Host: a", header)).token == token


def test_an_answer_loses_what_would_keep_the_connection_open():
    response = h11.Response(
        status_code=200,
        headers=[("Connection", "keep-alive"), ("Keep-Alive", "5"), ("X", "y"), ("Upgrade", "h2c")],
    )
    assert answer_headers(response) == [(b"x", b"y")]


def test_a_refusal_is_one_answer_whatever_its_reason_holds():
    said = refusal(Refused(403, "no\r\nX-Injected: 1\u202e", 'agents.a: "b"'))
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 403 no??X-Injected: 1?",
        b"Content-Type: text/plain; charset=utf-8",
        b"Content-Length: 19",
        b"Connection: close",
        b'X-Beige-Egress-Rule: agents.a: "b"',
    ]
    assert body == b"no??X-Injected: 1?\n"
