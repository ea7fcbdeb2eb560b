"""What the doctor says about a home and about an engine."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from beige.cli import doctor, engine_probe
from beige.cli.engine_probe import NoEngine, facts, probe, socket_path
from beige.paths import Home


def test_an_open_home_is_broken_and_the_fix_is_named(home: Home) -> None:
    home.keys.chmod(0o755)
    (finding,) = doctor._home(home)
    assert (finding.verdict, finding.fix) == ("broken", f"chmod 700 '{home.keys}'")


def test_a_private_home_is_fine(home: Home) -> None:
    assert [finding.verdict for finding in doctor._home(home)] == ["ok"]


def test_a_long_home_has_its_sockets_elsewhere(home: Home) -> None:
    (finding,) = doctor._sockets(Home(home.root / ("x" * 120)))
    assert finding.verdict == "ok" and "/tmp/beige-" in finding.text


def test_each_problem_of_the_configuration_is_a_finding(home: Home) -> None:
    home.config.write_text("{ llm: { providers: {} }, agents: {}, scale: { llm: 0, tols: 1 } }")
    found = list(doctor._configuration(home))
    assert [finding.verdict for finding in found] == ["broken", "broken"]
    assert found[0].text.startswith("scale.llm: ")
    assert found[1].fix.startswith('did you mean "tools"?')


VERSION = {"Version": "27.0", "ApiVersion": "1.46"}


def test_an_engine_that_cannot_filter_or_limit_is_described() -> None:
    found = facts(VERSION, {"SecurityOptions": ["name=cgroupns"], "PidsLimit": False, "MemoryLimit": True})
    assert (found.api, found.seccomp, found.lacks) == ((1, 46), False, ("processes",))
    assert facts(VERSION, {"SecurityOptions": ["name=seccomp,profile=builtin"]}).seccomp


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DOCKER_HOST": "unix:///x/d.sock"}, Path("/x/d.sock")),
        ({"DOCKER_HOST": "ssh://me@there"}, None),
        ({"DOCKER_HOST": "tcp://127.0.0.1:2375"}, None),
    ],
)
def test_where_the_engine_is(environ: dict[str, str], expected: Path | None) -> None:
    assert socket_path(environ) == expected


def test_no_socket_names_the_fix(home: Home) -> None:
    with pytest.raises(NoEngine) as caught:
        probe({"DOCKER_HOST": f"unix://{home.root}/none.sock"})
    assert "no socket" in str(caught.value) and "scripts/engine.sh" in caught.value.fix


@pytest.fixture
def engine(home: Home) -> Iterator[dict[str, str]]:
    """A server on a Unix socket that answers like an engine."""
    path = home.run / "d.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            for body in (VERSION, {"OperatingSystem": "Test", "SecurityOptions": ["name=seccomp"]}):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    data = json.dumps(body).encode()
                    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode()
                    connection.sendall(head + data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield {"DOCKER_HOST": f"unix://{path}"}
        thread.join(timeout=10)


def test_an_engine_is_asked_over_its_socket(engine: dict[str, str]) -> None:
    found = probe(engine)
    assert found is not None
    assert (found.text, found.seccomp) == ("27.0 (API 1.46), Test", True)
    assert engine_probe.TIMEOUT_S <= 10
