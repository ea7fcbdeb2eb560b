"""`python -m broker`: the broker's process."""

import signal

from beige.logs import configure
from beige.paths import Home
from beige.process import exit_code, ready
from broker.router import Router


def main() -> int:
    configure("broker")

    def serve() -> None:
        router = Router(Home.find())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: router.stop())
        ready()
        try:
            router.run()
        finally:
            router.close()

    return exit_code("broker", serve)


if __name__ == "__main__":
    raise SystemExit(main())
