"""Hosts have one form, rules cover what they say and no more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.destinations import Destination, canonical_host, covered, is_address, parse_authority, parse_rule
from beige.errors import Malformed

FORMS = {
    "Example.COM": "example.com",
    "example.com.": "example.com",
    "bücher.example": "xn--bcher-kva.example",
    "xn--bcher-kva.example": "xn--bcher-kva.example",
    "BÜCHER.example": "xn--bcher-kva.example",
    "example。com": "example.com",
    "r3---sn-a.example.com": "r3---sn-a.example.com",
    "_dmarc.example.com": "_dmarc.example.com",
    "localhost": "localhost",
    "192.0.2.1": "192.0.2.1",
    "192.0.2.1.": "192.0.2.1",
    "\uff11\uff19\uff12.0.2.1": "192.0.2.1",
    "2001:DB8:0:0::1": "2001:db8::1",
}


@pytest.mark.parametrize(("said", "form"), FORMS.items())
def test_one_form_per_host(said, form):
    assert canonical_host(said) == form
    assert canonical_host(form) == form


AMBIGUOUS = [
    "", ".", "..", "a..b", ".example.com", "-a.example", "a-.example", "a b.example", "a%2eb.example",
    "2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.01", "1.2.3.4.5", "256.0.0.1",
    "example.0x", "1.2.3.0x4", "user@example.com", "example.com/path", "example.com\\", "exa\0mple.com",
    "example.com\r\nx", "fe80::1%eth0", "::g", "1::2::3", "[::1]", "a" * 64 + ".example", "a." * 127 + "com",
    "ⓐ\u200d.example", "\u2024example", "0xc0.0x0.0x2.0x1",
]  # fmt: skip


@pytest.mark.parametrize("host", AMBIGUOUS)
def test_what_is_no_host_or_could_be_two_is_refused(host):
    with pytest.raises(Malformed):
        canonical_host(host)


@given(st.text(max_size=300))
def test_the_form_of_a_form_is_itself(text):
    try:
        form = canonical_host(text)
    except Malformed:
        return
    assert canonical_host(form) == form
    assert form.isascii()
    assert form == form.lower()


AUTHORITIES = {
    "example.com:443": ("example.com", 443),
    "EXAMPLE.com.:8443": ("example.com", 8443),
    "[2001:db8::1]:443": ("2001:db8::1", 443),
    "192.0.2.1:80": ("192.0.2.1", 80),
    "example.com": ("example.com", 80),
    "[::1]": ("::1", 80),
}


@pytest.mark.parametrize(("text", "expected"), AUTHORITIES.items())
def test_authorities(text, expected):
    found = parse_authority(text, 80)
    assert (found.host, found.port) == expected
    assert parse_authority(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["example.com:", "example.com:0", "example.com:65536", "example.com:+80", "example.com: 80", "a:80:80",
     "example.com:080", "example.com:\uff18\uff10", "::1:80", "[::1", "[::1]x",
     "user@example.com:80", "[a.example]:80"],
)  # fmt: skip
def test_authorities_that_are_none(text):
    with pytest.raises(Malformed):
        parse_authority(text, 80)


def test_a_port_is_needed_where_none_is_implied():
    with pytest.raises(Malformed):
        parse_authority("example.com")


COVERED = [
    ("example.com", "example.com:443", True),
    ("example.com", "example.com:80", True),
    ("example.com", "example.com:8443", False),
    ("example.com:8443", "example.com:8443", True),
    ("example.com:8443", "example.com:443", False),
    ("example.com", "www.example.com:443", False),
    ("*.example.com", "www.example.com:443", True),
    ("*.example.com", "a.b.example.com:443", True),
    ("*.example.com", "example.com:443", False),
    ("*.example.com", "badexample.com:443", False),
    ("*.example.com:8080", "www.example.com:8080", True),
    ("*.BÜCHER.example", "www.xn--bcher-kva.example:443", True),
    ("*", "anything.example:443", True),
    ("*", "192.0.2.1:80", True),
    ("*", "anything.example:22", False),
    ("*:22", "anything.example:22", True),
    ("192.0.2.1", "192.0.2.1:443", True),
    ("[2001:db8::1]", "[2001:db8::1]:443", True),
    ("[2001:db8::1]:8443", "[2001:db8:0::1]:8443", True),
    ("2001:db8::1", "[2001:db8::1]:80", True),
]


@pytest.mark.parametrize(("rule", "wanted", "expected"), COVERED)
def test_a_rule_covers_what_it_says(rule, wanted, expected):
    assert parse_rule(rule).covers(parse_authority(wanted)) is expected


@pytest.mark.parametrize(
    "text",
    ["", "*.", "**", "*a.example", "a.*.example", "https://example.com", "example.com/", "*.192.0.2.1",
     "example.com:https", "example.com:0", "example.com:70000", "0x7f.1", "*:", "*.*.example"],
)  # fmt: skip
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(Malformed):
        parse_rule(text)


@pytest.mark.parametrize("rule", ["example.com", "*.example.com:8080", "*", "*:22", "[2001:db8::1]:8443"])
def test_a_rule_is_told_as_it_is_written(rule):
    assert str(parse_rule(rule)) == rule


def test_no_rules_cover_nothing():
    assert not covered((), Destination("example.com", 443))


@pytest.mark.parametrize(("host", "expected"), [("192.0.2.1", True), ("::1", True), ("a.example", False)])
def test_addresses_are_told_from_names(host, expected):
    assert is_address(host) is expected
