"""Decides whether the HTTP API's part of a configuration is safe and complete. Works on plain values."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beige.config.problems import Problem


def loopback(host: str) -> bool:
    """Whether only this machine can reach what listens at `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check(gateway: dict[str, Any], directory: Path) -> Iterator[Problem]:
    """Stops an API that runs commands from being open to a network by one careless line
    (`tests/unit/config/test_gateway_config.py`)."""
    host, tls = gateway.get("host"), gateway.get("tls")
    if isinstance(host, str) and "${" not in host and not loopback(host):
        if not isinstance(tls, dict) and gateway.get("insecureBind") is not True:
            text = f"{host!r} is reachable from other machines"
            yield Problem(("gateway", "host"), text, "set tls, or insecureBind: true")
    for key in ("cert", "key"):
        file = tls.get(key) if isinstance(tls, dict) else None
        if isinstance(file, str) and "${" not in file and not (directory / file).is_file():
            yield Problem(("gateway", "tls", key), f"{file!r} is not a file", f"relative to {directory}")
