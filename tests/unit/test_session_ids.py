"""Session ids: file names that name nothing else."""

import pytest

from beige.errors import Malformed
from beige.sessions import check_id, turn_options


@pytest.mark.parametrize(
    "session",
    ["../x", "a/b", "/etc/passwd", ".", "..", ".hidden", "a\0b", "a\nb", "a b", "ä", "-x", "x" * 129, "a\n"],
)
def test_a_session_id_is_a_plain_file_name(session):
    with pytest.raises(Malformed, match="session"):
        check_id(session)


@pytest.mark.parametrize(
    "session", ["a", "20261129-161500-1a2b3c4d", "telegram:123:-45", "user@host+x.y", "x" * 128]
)
def test_ordinary_ids_are_accepted(session):
    assert check_id(session) == session


def test_an_empty_id_becomes_a_new_one():
    first, second = check_id(""), check_id("")
    assert first != second
    assert check_id(first) == first


def test_each_prompt_has_its_own_idempotency_key_and_its_sessions_affinity():
    first, second = turn_options("a", "s", "cli"), turn_options("a", "s", "cli")
    assert first["idem"] != second["idem"]
    assert first["key"] == second["key"] == "a/s"
