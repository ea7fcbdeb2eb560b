"""supervisord, waking up ten times a second.

Its loop starts a dead process only after its next poll, which waits a whole second when nothing else
happens (supervisor 4.3, `Supervisor.runforever`). A capped poll brings a killed process back at once.
"""

from __future__ import annotations

from typing import Any

from supervisor.options import ServerOptions
from supervisor.supervisord import go

POLL_S = 0.1


class PromptOptions(ServerOptions):  # type: ignore[misc]
    """supervisord's options with a poller that never sleeps longer than `POLL_S`."""

    def __init__(self) -> None:
        super().__init__()
        poll = self.poller.poll
        self.poller.poll = lambda timeout: poll(min(timeout, POLL_S))


def main(arguments: list[str] | None = None) -> None:
    options: Any = PromptOptions()
    options.realize(arguments, doc=__doc__)
    options.first, options.test = True, False
    go(options)
    options.close_httpservers()
    options.close_logger()


if __name__ == "__main__":
    main()
