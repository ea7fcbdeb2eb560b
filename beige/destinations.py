"""Decides what a destination on the internet is called, and which rules of an allowlist cover it. Pure.

A host has one form here: lower case, no final dot, IDNA's ASCII form, IP addresses as `ipaddress` writes
them. What can be read in more than one way (`0x7f.1`, `0177.0.0.1`, `2130706433`, percent signs) is refused
rather than guessed: policy must decide about the very name that is resolved later
(`tests/attacks/test_egress.py::test_a_host_that_can_be_read_in_two_ways_is_refused`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import idna

from beige.errors import Malformed

DEFAULT_PORTS = frozenset({80, 443})
"""What a rule without a port covers."""
MAX_HOST = 253
RULE_FORM = 'a host such as "api.github.com", "*.mirror.example", "*" or one with a port, "host:8443"'

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_NUMBER = re.compile(r"([0-9]+|0x[0-9a-f]*)\Z")
_PORT = re.compile(r"[1-9][0-9]{0,4}\Z")
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[^:]*))?\Z")


@dataclass(frozen=True)
class Destination:
    host: str
    """In the one form."""
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


@dataclass(frozen=True)
class Rule:
    """One line of an allowlist."""

    host: str
    """Exact; or, if `below`, the domain whose sub-names are covered, "" for every host."""
    below: bool
    ports: frozenset[int]

    def __str__(self) -> str:
        host = "*." * bool(self.below and self.host) + (bracketed(self.host) or "*")
        return host if self.ports == DEFAULT_PORTS else f"{host}:{min(self.ports)}"

    def covers(self, wanted: Destination) -> bool:
        if wanted.port not in self.ports:
            return False
        if not self.below:
            return wanted.host == self.host
        return not self.host or wanted.host.endswith("." + self.host)


def covered(rules: Iterable[Rule], wanted: Destination) -> bool:
    return any(rule.covers(wanted) for rule in rules)


def canonical_host(text: str) -> str:
    """The one form of a host: a name, an IPv4 address, or an IPv6 address without brackets. Malformed if
    it is none, or could be taken for several."""
    if ":" in text:
        return _ipv6(text)
    name = _ascii(text.removesuffix(".")).lower()
    labels = name.split(".")
    if len(name) > MAX_HOST or not all(_LABEL.match(label) for label in labels):
        raise Malformed(f"host: {text[:64]!r} is no host name")
    # As URL parsers have it: a name whose last part is a number is an IPv4 address, or nothing.
    return _ipv4(name) if _NUMBER.match(labels[-1]) else name


def is_address(host: str) -> bool:
    """Of a host in the one form: is it an IP address?"""
    return ":" in host or host.rpartition(".")[2].isdecimal()


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def parse_authority(text: str, default_port: int | None = None) -> Destination:
    """`host:port` of a URL, a Host header or a CONNECT. Malformed; also if no port is given or implied."""
    found = _AUTHORITY.match(text)
    if not found:
        raise Malformed(f"host: {text[:64]!r} is not host:port")
    host = _ipv6(found["v6"]) if found["v6"] is not None else canonical_host(found["name"])
    port = str(default_port or "") if found["port"] is None else found["port"]
    if not _PORT.match(port) or int(port) > 65535:
        raise Malformed(f"port: {text[:64]!r} names none between 1 and 65535")
    return Destination(host, int(port))


def parse_rule(text: str) -> Rule:
    """Malformed if it is no rule (`RULE_FORM`)."""
    pattern, colon, port = text.rpartition(":") if _has_port(text) else (text, "", "")
    if colon and (not _PORT.match(port) or int(port) > 65535):
        raise Malformed(f"{text[:64]!r} has no port between 1 and 65535")
    ports = frozenset({int(port)}) if colon else DEFAULT_PORTS
    if pattern == "*":
        return Rule("", True, ports)
    if pattern.startswith("*."):
        host = canonical_host(pattern[2:])
        if is_address(host):
            raise Malformed(f"{text[:64]!r}: an address has no sub-names")
        return Rule(host, True, ports)
    bare = pattern[1:-1] if pattern.startswith("[") and pattern.endswith("]") else pattern
    return Rule(canonical_host(bare), False, ports)


def rule_path(agent: str) -> str:
    return f"agents.{agent}.sandbox.egress.allow"


def missing_rule(agent: str, wanted: Destination) -> str:
    """What an operator would have to add for `wanted`."""
    return f'{rule_path(agent)}: "{wanted}"'


def _has_port(text: str) -> bool:
    return "]:" in text if text.startswith("[") else text.count(":") == 1


def _ascii(name: str) -> str:
    if name.isascii():
        return name
    try:
        return idna.encode(name, uts46=True).decode()
    except (idna.IDNAError, UnicodeError) as error:
        raise Malformed(f"host: {name[:64]!r} is no host name ({str(error)[:100]})") from None


def _ipv4(text: str) -> str:
    try:
        return str(IPv4Address(text))
    except AddressValueError:
        raise Malformed(f"host: {text[:64]!r} is no IPv4 address of four decimal numbers") from None


def _ipv6(text: str) -> str:
    if "%" in text:
        raise Malformed(f"host: {text[:64]!r} names a zone of this machine")
    try:
        return str(IPv6Address(text))
    except AddressValueError:
        raise Malformed(f"host: {text[:64]!r} is no IPv6 address") from None
