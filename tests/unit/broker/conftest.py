import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("broker_playbook", Path(__file__).with_name("playbook.py"))
_module = importlib.util.module_from_spec(_spec)
import sys  # noqa: E402

sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)


@pytest.fixture
def play():
    return _module.Play()
