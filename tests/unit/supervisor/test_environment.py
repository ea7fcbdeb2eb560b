"""Which process gets which variable."""

from __future__ import annotations

import pytest

from beige.paths import Home
from beige.supervisor import environment
from beige.supervisor.launch import MODULES

OPERATOR = {
    "PATH": "/bin",
    "HOME": "/home/o",
    "KEY": "k",
    "TOKEN": "t",
    "CITY": "Rome",
    "DOCKER_HOST": "unix:///d",
    "HTTPS_PROXY": "http://p",
    "AWS_SECRET_ACCESS_KEY": "s",
    "PYTHONSTARTUP": "/evil",
}
NEEDED = {program: {"CITY"} for program in MODULES} | {"llm": {"KEY", "CITY"}, "tools": {"TOKEN", "CITY"}}
COMMON = {"PATH", "HOME", "CITY", "BEIGE_HOME"}


@pytest.mark.parametrize(
    ("program", "more"),
    [
        ("policy", set()),
        ("audit", set()),
        ("bridge", set()),
        ("tap", set()),
        ("gateway", set()),
        ("sandbox", {"DOCKER_HOST"}),
        ("llm", {"KEY", "HTTPS_PROXY"}),
        ("tools", {"TOKEN", "HTTPS_PROXY"}),
        ("egress", {"HTTPS_PROXY"}),
    ],
)
def test_a_process_gets_its_own_variables_and_no_other(home: Home, program: str, more: set[str]) -> None:
    found = environment.environments(home, NEEDED, OPERATOR)[program]
    assert set(found) - {"PYTHONPATH"} == COMMON | more


def test_helpers_and_supervisord_get_no_variable_of_the_configuration(home: Home) -> None:
    for found in (environment.minimal(home, OPERATOR), environment.helper(home, OPERATOR)):
        assert not {"KEY", "TOKEN", "CITY", "AWS_SECRET_ACCESS_KEY", "PYTHONSTARTUP"} & set(found)


def test_what_is_written_is_read_back_and_forgotten(home: Home) -> None:
    wanted = environment.environments(home, NEEDED, OPERATOR | {"CITY": 'Zür"ich\n\udcff'})
    environment.write(home, wanted)
    assert environment.read(home) == wanted
    assert environment.known_before(home)["KEY"] == "k"
    environment.remove(home)
    assert environment.read(home) == {}
