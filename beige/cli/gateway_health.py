"""Asks the gateway, over its Unix socket, whether it serves where it should."""

from __future__ import annotations

import http.client
import json

from beige.paths import Home
from beige.supervisor.control import UnixConnection

TIMEOUT_S, MAX_BYTES = 5.0, 64 * 1024


def problem(home: Home) -> str:
    """What is wrong, in words (`can't listen at 127.0.0.1:7433 ...`); empty if nothing is."""
    connection = UnixConnection(home.http_socket, TIMEOUT_S)
    try:
        connection.request("GET", "/api/health")
        health = json.loads(connection.getresponse().read(MAX_BYTES))
        return str(health["problem"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return f"the HTTP API doesn't answer ({type(error).__name__})"
    finally:
        connection.close()
