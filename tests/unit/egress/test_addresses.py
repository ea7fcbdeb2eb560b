"""Which addresses are on the internet."""

import socket

import pytest

from services.egress.addresses import why_refused
from services.egress.dialer import is_own, refused

INTERNET = [
    "1.1.1.1",
    "8.8.8.8",
    "151.101.1.6",
    "172.32.0.1",
    "100.128.0.1",
    "2606:4700::1111",
    "2a04:4e42::223",
]
REFUSED = [
    "0.0.0.0", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.255", "169.254.169.254",
    "172.16.0.1", "172.31.255.255", "192.168.1.1", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "::10.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "64:ff9b::a00:1", "64:ff9b::808:808",
    "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:a00:1::", "2002:808:808::1", "3fff::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "5f00::1",
    "", "localhost", "1.2.3", "0x7f000001", "127.0.0.01",
]  # fmt: skip


@pytest.mark.parametrize("address", INTERNET)
def test_the_internet(address):
    assert why_refused(address) == ""


@pytest.mark.parametrize("address", REFUSED)
def test_all_else_is_refused_with_a_meaning(address):
    assert why_refused(address) != ""
    assert refused(address) != ""


def test_an_address_of_this_machine_is_known_whatever_it_is():
    """A public one of its own would look like any other on the internet."""
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.1")
    if socket.has_ipv6:
        assert not is_own("2001:db8::1")
