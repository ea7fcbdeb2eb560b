"""Decides which IP addresses are on the internet: the others are never connected to. Pure.

The lists are IANA's special-purpose registries, written out instead of asked from `ipaddress`, whose own
have changed between versions of Python. IPv6 is an allow list: what is assigned for the internet, 2000::/3,
less what carries an IPv4 address inside (6to4, Teredo) or is for documentation; NAT64 and IPv4-mapped forms,
which would lead to any IPv4 address, are outside of it.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_V4 = {
    "0.0.0.0/8": "this machine",
    "10.0.0.0/8": "a private network",
    "100.64.0.0/10": "a provider's inner network",
    "127.0.0.0/8": "this machine",
    "168.63.129.16/32": "a cloud's service for its machines",
    "169.254.0.0/16": "the local link, or a cloud's metadata service",
    "172.16.0.0/12": "a private network",
    "192.0.0.0/24": "a special network",
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "a relay to IPv6",
    "192.168.0.0/16": "a private network",
    "198.18.0.0/15": "for tests of networks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "many machines",
    "240.0.0.0/4": "not assigned",
}
_V6_INTERNET = IPv6Network("2000::/3")
_V6 = {
    "2001::/23": "a special network, or a tunnel to an IPv4 address",
    "2001:db8::/32": "for documentation",
    "2002::/16": "a tunnel to an IPv4 address",
    "3fff::/20": "for documentation",
}
_REFUSED4 = [(IPv4Network(network), meaning) for network, meaning in _V4.items()]
_REFUSED6 = [(IPv6Network(network), meaning) for network, meaning in _V6.items()]
NOT_INTERNET = "not an address of the internet"


def why_refused(address: str) -> str:
    """What the address stands for instead of a machine on the internet; "" if it is one. A text that is no
    address is refused too."""
    try:
        found = ip_address(address)
    except ValueError:
        return NOT_INTERNET
    return _why4(found) if isinstance(found, IPv4Address) else _why6(found)


def _why4(address: IPv4Address) -> str:
    return next((meaning for network, meaning in _REFUSED4 if address in network), "")


def _why6(address: IPv6Address) -> str:
    if address.scope_id or address not in _V6_INTERNET:
        return NOT_INTERNET
    return next((meaning for network, meaning in _REFUSED6 if address in network), "")
