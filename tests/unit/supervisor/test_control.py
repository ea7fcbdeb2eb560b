"""supervisord that isn't there, or isn't supervisord."""

from __future__ import annotations

import socket
import threading

import pytest

from beige.errors import Unavailable
from beige.paths import Home
from beige.supervisor.control import Control


def test_nobody_listening_is_unavailable(home: Home) -> None:
    assert Control(home).answers() is False
    with pytest.raises(Unavailable, match="not running"):
        Control(home).processes()


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n", b"nonsense\r\n\r\n"]
)
def test_an_answer_that_makes_no_sense_is_unavailable(home: Home, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home.run / "supervisord.sock"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unavailable):
            Control(home, timeout_s=5.0).processes()
        thread.join(timeout=10)


def test_silence_ends_at_the_deadline(home: Home) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home.run / "supervisord.sock"))
        listener.listen()
        with pytest.raises(Unavailable, match="in time"):
            Control(home, timeout_s=0.2).processes()
