"""A house whose agents have a way out, on an internet of its own, with a service that none may reach."""

from __future__ import annotations

import contextlib
import socket

from tests.simulator.internet import Town, answer, read_head

CONNECTIONS = 8


class Scene(Town):
    """`travel` may reach `shop.example` (TLS), `web.example`, and every name at `self.inner.port`, where a
    service of this machine listens that no agent may reach."""

    def __init__(self, stack):
        super().__init__(stack)
        self.heads = []
        self.reached = []
        self.shop = self.internet.site("shop.example", self._tls_page, tls=True)
        self.web = self.internet.site("web.example", self._page)
        self.inner = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.inner.settimeout(0)
        port = self.inner.getsockname()[1]
        # The same port at the address that stands for the internet: the control of all that leads inside.
        self.outer = self.internet.site(
            "outer.example", lambda c: (c.sendall(b"outer"), c.recv(1)), port=port
        )
        self.port = port
        self.up(self.shop.place, self.web.place, f"*:{port}", more=f", connections: {CONNECTIONS}")

    def _tls_page(self, connection):
        self.reached.append(connection.recv(65536))
        connection.sendall(answer(b"shop"))

    def _page(self, connection):
        head = read_head(connection)
        self.heads.append(head)
        if b"/redirect" in head:
            place = f"http://127.0.0.1:{self.port}/".encode()
            connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n")
        else:
            connection.sendall(answer(b"web"))
            connection.recv(1)

    def inner_untouched(self):
        with contextlib.suppress(BlockingIOError):
            self.inner.accept()
            return False
        return True


def status(answered):
    return int(answered.split(b" ", 2)[1])
