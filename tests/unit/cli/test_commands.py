"""The command line as its user meets it: real processes, a minimal environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from beige.cli import COMMANDS
from beige.paths import Home
from beige.supervisor.environment import minimal

PLAIN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
VALID = """{
  llm: { providers: { openai: { apiKey: "${KEY}", headers: { "X-Auth": "literal-secret" } } } },
  egress: { upstreamProxy: "http://user:literal-secret@proxy.example:3128" },
  agents: { a: { model: { provider: "openai", model: "m" }, tools: [], sandbox: { image: "i" } } },
}"""


def beige(home: Home, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "beige.cli", *arguments],
        env=minimal(home, PLAIN) | environ,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_imports_no_library_of_a_service(home: Home) -> None:
    script = (
        "import sys\nfrom beige.cli import main\nsys.argv = ['beige', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'pydantic', 'zmq', 'msgspec', 'docker', 'anthropic', 'openai', 'rich', 'supervisor'}\n"
        "heavy |= {'textual', 'httpx'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=minimal(home, PLAIN),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("tap", "audit")])
def test_every_help_teaches_with_an_example(home: Home, command: str) -> None:
    text = beige(home, command, "--help").stdout
    if "COMMAND [ARGS]" in text:
        for sub in [line.split()[0] for line in text.split("Commands:")[1].splitlines() if line.strip()]:
            assert f"beige {command} {sub}" in beige(home, command, sub, "--help").stdout.split("Example")[1]
    else:
        assert f"beige {command}" in text.split("Example")[1] or f"{command}" in text.split("Example")[1]


def test_an_unknown_command_is_a_usage_error_with_a_hint(home: Home) -> None:
    done = beige(home, "statsu")
    assert done.returncode == 2
    assert "Did you mean 'status'?" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("prompt", "a", "hi"), ("exec", "a", "--", "true"), ("tools", "call", "a", "kv"), ("sandbox", "list")],
)
def test_without_a_running_house_the_message_says_how_to_start_one(
    home: Home, arguments: tuple[str, ...]
) -> None:
    home.config.write_text(VALID)
    done = beige(home, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"beige: beige is not running for {home.root}: start it with `beige up`\n"


def test_status_of_a_house_that_is_down(home: Home) -> None:
    done = beige(home, "status", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["up"] is False


def test_an_unknown_agent_is_named_with_those_there_are(home: Home) -> None:
    home.config.write_text(VALID)
    done = beige(home, "prompt", "b", "hi")
    assert (done.returncode, done.stderr) == (1, "beige: no such agent: 'b'; allowed: a\n")


def test_config_check_reports_every_problem_and_exits_2(home: Home) -> None:
    home.config.write_text(VALID.replace("tools", "tols").replace('"openai", model', '"opnai", model'))
    done = beige(home, "config", "check")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0] == "beige: 4 problems in the configuration:"
    assert lines[1:] == sorted(lines[1:], key=lines[1:].index)
    assert any("agents.a.model.provider: no such provider: 'opnai'" in line for line in lines)
    as_json = json.loads(beige(home, "config", "check", "--json").stdout)
    assert as_json["ok"] is False
    assert {p["path"] for p in as_json["problems"]} == {
        "llm.providers.openai.apiKey", "agents.a.tools", "agents.a.tols", "agents.a.model.provider",
    }  # fmt: skip


def test_config_check_of_a_good_file(home: Home) -> None:
    home.config.write_text(VALID)
    done = beige(home, "config", "check", KEY="k")
    assert (done.returncode, done.stderr) == (0, "")


def test_config_show_fills_in_defaults_and_hides_what_is_secret(home: Home) -> None:
    home.config.write_text(VALID)
    done = beige(home, "config", "show", KEY="resolved-secret")
    shown = json.loads(done.stdout)
    assert shown["agents"]["a"]["sandbox"]["profile"] == "sealed"
    assert shown["llm"]["providers"]["openai"]["apiKey"] == "${KEY}"
    assert shown["egress"]["upstreamProxy"] == "http://(hidden)@proxy.example:3128"
    assert "literal-secret" not in done.stdout and "resolved-secret" not in done.stdout


def test_the_schema_is_json(home: Home) -> None:
    assert "agents" in json.loads(beige(home, "config", "schema").stdout)["properties"]


def test_setup_makes_a_first_configuration_once(home: Home) -> None:
    fresh = Home(home.root / "fresh")
    first = beige(fresh, "--home", str(fresh.root), "setup", "--json")
    assert json.loads(first.stdout)["createdConfig"] is True
    assert (fresh.keys / "bus" / "policy-0.key").stat().st_mode & 0o777 == 0o600
    assert fresh.config.stat().st_mode & 0o777 == 0o600
    secret = (fresh.keys / "bus" / "policy-0.key").read_text()
    fresh.config.write_text(fresh.config.read_text() + "// mine\n")
    second = beige(fresh, "setup")
    assert second.returncode == 0
    assert fresh.config.read_text().endswith("// mine\n")
    assert (fresh.keys / "bus" / "policy-0.key").read_text() == secret
    assert beige(fresh, "config", "check", ANTHROPIC_API_KEY="k").returncode == 0


def test_a_reader_that_goes_away_is_no_crash(home: Home) -> None:
    (home.logs / "policy.log").write_text("line\n" * 5000)
    command = f"'{sys.executable}' -P -m beige.cli logs -n 5000 | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], env=minimal(home, PLAIN), cwd="/", capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "policy     line\n"
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_version(home: Home) -> None:
    assert set(json.loads(beige(home, "version", "--json").stdout)) == {"beige", "protocol", "python"}
