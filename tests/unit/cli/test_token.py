"""`beige token`, as its user types it."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from beige import tokens
from beige.cli.setup import STARTER
from beige.supervisor.environment import minimal

KEY = {"ANTHROPIC_API_KEY": "k", "PATH": "/usr/bin:/bin"}


@pytest.fixture
def beige(home):
    home.config.write_text(STARTER.read_text())

    def run(*arguments, code=0):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "beige.cli", *arguments],
            env=minimal(home, KEY), capture_output=True, text=True, timeout=60, cwd=Path("/"), check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    return run


def test_a_token_is_shown_once_and_counts(home, beige):
    made = beige(
        "token", "create", "ci", "--agent", "assistant", "--scope", "prompt,read", "--expires", "30d"
    )
    secret = made.stdout.strip()
    assert secret.startswith(tokens.PREFIX)
    assert "note it now" in made.stderr
    (token,) = [token for token in tokens.read(home) if token.name == "ci"]
    assert (token.digest, token.agents, token.scopes) == (
        tokens.digest_of(secret), ("assistant",), ("prompt", "read"),
    )  # fmt: skip
    assert timedelta(days=29) < token.expires - datetime.now(UTC) <= timedelta(days=30)
    listed = beige("token", "list")
    assert "ci" in listed.stdout
    assert secret not in listed.stdout


def test_json_for_scripts(home, beige):
    made = json.loads(
        beige("token", "create", "ops", "-a", "*", "-s", "admin", "--expires", "never", "--json").stdout
    )
    assert (made["name"], made["agents"], made["scopes"], made["expires"]) == ("ops", ["*"], ["admin"], None)
    listed = {token["name"]: token for token in json.loads(beige("token", "list", "--json").stdout)}
    assert set(listed) == {"setup", "ops"}
    assert "digest" not in listed["ops"]


def test_revoking(home, beige):
    beige("token", "create", "ci", "-a", "assistant", "-s", "read")
    assert beige("token", "revoke", "ci").stdout == "revoked ci\n"
    assert "there is no token 'ci'" in beige("token", "revoke", "ci", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-a", "assistant", "-s", "write"), "no such scope: 'write'; allowed: admin, exec, prompt, read"),
        (("-a", "assistant", "-s", ","), "a token needs a scope"),
        (("-a", "assistent", "-s", "read"), "no such agent: 'assistent'; did you mean \"assistant\"?"),
        (("-a", "assistant", "-s", "read", "--expires", "soon"), "'soon' is no lifetime; write 30d"),
    ],
)
def test_nothing_is_made_of_a_mistake(home, beige, arguments, said):
    assert said in beige("token", "create", "x", *arguments, code=1).stderr
    assert not home.http_tokens.exists()


def test_agents_and_scopes_have_no_default(beige):
    beige("token", "create", "x", code=2)
    beige("token", "create", "x", "-a", "assistant", code=2)
    beige("token", "create", "x", "-s", "read", code=2)
