"""`python -m broker`: the broker's process."""

import signal

from beige.logs import configure
from beige.paths import Home
from beige.process import exit_code, ready
from broker.router import Router


def serve() -> None:
    """Until SIGTERM or SIGINT; whatever ends it, its sockets are removed."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: asked.append(received))
    router = Router(Home.find())
    try:
        ready()
        router.run(until=lambda: bool(asked))
    finally:
        router.close()


def main() -> int:
    configure("broker")
    return exit_code("broker", serve)


if __name__ == "__main__":
    raise SystemExit(main())
