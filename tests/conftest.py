"""What all tests share: a throw-away home, the Docker engine's readiness, and no silent skips in CI."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from beige.paths import Home
from beige.testing import short_home

settings.register_profile("beige", deadline=None)  # a loaded machine is slow, not wrong
settings.load_profile("beige")
CI = bool(os.environ.get("CI"))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script: what the tests start would inherit it, and never see a Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def home() -> Iterator[Home]:
    """A temporary home, created, whose path leaves room for socket names."""
    with short_home() as home:
        yield home


@pytest.fixture(scope="session")
def docker_ready() -> None:
    """An engine answers and the sandbox image is up to date; otherwise the test is skipped."""
    from beige.cli.image import DEFAULT_TAG, status_of
    from beige.errors import BeigeError

    with short_home() as home:
        try:
            image = status_of(home, DEFAULT_TAG)
        except BeigeError as error:
            pytest.skip(str(error))
    if image.text:
        pytest.skip(f"{image.text}: run `make image`")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that can't run is a failure: there, everything it needs must be available."""
    report = yield
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which counts as failed in CI: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file that skips itself."""
    report = yield
    if CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, which counts as failed in CI: {_reason(report.longrepr)}"
    return report


def _reason(longrepr: Any) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
