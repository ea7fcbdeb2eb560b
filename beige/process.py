"""Run loop of a process: event loop, signals, READY, exit code.

Anything unexpected ends the process non-zero; supervisord starts it again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from beige.errors import BeigeError, ConfigError
from beige.logs import configure
from beige.paths import Home

EXIT_CONFIG = 2
EXIT_CRASH = 1


def ready() -> None:
    """Tell whoever started us (a person, a test) that we serve now.

    What was loaded until here stays; the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    print("READY", flush=True)


@dataclass
class Context:
    """What a service's main gets."""

    home: Home
    user: str
    """The process's bus user, `role/instance`."""
    log: logging.Logger
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by SIGTERM and SIGINT."""
    ready: Callable[[], None] = ready


OTHER_FILES = 128
"""Descriptors a process needs for itself."""


def allow_open_files(wanted: int, log: logging.Logger) -> None:
    """Room for `wanted` descriptors, as far as the hard limit goes: agents that may have many connections
    must not take the last one from each other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < needed:
        log.warning("%d open files are allowed, %d could be needed: raise `ulimit -n`", most, needed)


def run(role: str, main: Callable[[Context], Awaitable[None]]) -> None:
    """Run `main` until it returns, and exit. `BEIGE_HOME` and `BEIGE_INSTANCE` name home and user."""
    configure(role)

    def serve() -> None:
        import uvloop

        instance = os.environ.get("BEIGE_INSTANCE", "0")
        context = Context(Home.find(), f"{role}/{instance}", logging.getLogger(role))
        uvloop.run(_with_signals(context, main))

    raise SystemExit(exit_code(role, serve))


async def _with_signals(context: Context, main: Callable[[Context], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, context.stop.set)
    await main(context)


def exit_code(role: str, serve: Callable[[], None]) -> int:
    """Run `serve`; 0 when it returns, 2 for a configuration error, 1 for anything else."""
    log = logging.getLogger(role)
    try:
        serve()
    except ConfigError as error:
        log.error("configuration error: %s", error)
        return EXIT_CONFIG
    except BeigeError as error:
        log.error("%s: %s", error.code, error)
        return EXIT_CRASH
    except KeyboardInterrupt:
        return 130
    except Exception:
        log.exception("%s crashed", role)
        return EXIT_CRASH
    finally:
        sys.stdout.flush()
    return 0
