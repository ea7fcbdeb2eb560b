import pytest

from tests.simulator.server import Simulator


@pytest.fixture
def simulator():
    with Simulator() as running:
        yield running
