"""What `beige egress` makes of the audit log, and what the doctor says of openings."""

from __future__ import annotations

from typing import Any

import pytest

from beige.auditlog import Record
from beige.cli.doctor_egress import openings
from beige.cli.egress_view import Destination, destinations, pasteable, seconds
from beige.config import Config
from beige.errors import Malformed
from beige.paths import Home


def record(phase: str, place: str = "a.example:443", **fields: Any) -> Record:
    known: dict[str, Any] = {
        "ts": "2026-03-05T12:00:00.000Z", "agent": "travel", "type": "egress", "tool": "connect",
        "args": [place, "CONNECT"], "decision": "allowed", "phase": phase, "id": "1-1",
    }  # fmt: skip
    return Record(**(known | fields))


LOG = [
    record("started", rule="a.example"),
    record("finished", input_bytes=10, output_bytes=200),
    record("started", rule="a.example"),
    record("finished", input_bytes=1, output_bytes=2, error="cancelled", ts="2026-03-05T13:00:00.000Z"),
    record("finished", "b.example:80", decision="denied", error="Permission denied: x"),
    record("started", agent="other"),
    record("started", type="tool"),
    record("started", args=[]),
]


def test_destinations_of_an_agent_are_added_up() -> None:
    assert destinations(LOG, "travel") == [
        Destination("a.example:443", 2, 0, 1, 11, 202, "a.example", "2026-03-05T13:00:00.000Z", "cancelled"),
        Destination("b.example:80", 0, 1, last="2026-03-05T12:00:00.000Z", error="Permission denied: x"),
    ]
    assert [one.destination for one in destinations(LOG, "travel", "2026-03-05T12:30:00.000Z")] == [
        "a.example:443"
    ]


def test_the_list_can_be_pasted() -> None:
    assert pasteable(["a.example:443", "*.b.example:80"]) == (
        'egress: { allow: [\n  "a.example:443",\n  "*.b.example:80",\n] }'
    )


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("10m", 600), ("24h", 86400)])
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "10", "0s", "25h", "1d", "-1m", "1.5h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(Malformed, match="--for"):
        seconds(text)


def test_the_doctor_names_what_is_open(home: Home) -> None:
    agent = {"allow": ("a.example",)}
    config = Config.model_validate(
        {
            "llm": {"providers": {}},
            "egress": {"upstreamProxy": "http://p:1"},
            "agents": {
                name: {
                    "model": {"provider": "p", "model": "m"},
                    "tools": (),
                    "sandbox": {"image": "i", "profile": "open", "egress": box, "root": name == "wide"},
                }
                for name, box in (("narrow", agent), ("wide", {"allow": ("*",)}), ("none", {"allow": ()}))
            },
        }
    )
    found = [(one.what, one.verdict, one.text.partition(":")[0]) for one in openings(home, config)]
    assert found == [
        ("egress", "ok", "narrow"),
        ("egress", "warning", "wide"),
        ("root", "warning", "wide"),
        ("egress", "ok", "none"),
        ("egress", "warning", "connections go through a proxy that resolves the names"),
    ]
