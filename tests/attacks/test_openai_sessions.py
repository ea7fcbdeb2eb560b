"""Threat: a client of OpenAI's API that reaches a conversation of another token, or of another agent.

It knows everything but the other's token: every word of the conversation, its keys, its responses' ids.
"""

from __future__ import annotations

import json

import pytest

from beige import tokens
from tests.processes.gateway_stage import new_stage

CHAT, RESPONSES, MODELS = "/v1/chat/completions", "/v1/responses", "/v1/models"
GO, TWO = ({"role": "user", "content": text} for text in ("go", "two"))
SAID = {"role": "assistant", "content": "It says hello."}
HEARD = "You said: two"
"""What only an agent answers that was told `go` before."""


@pytest.fixture(scope="module")
def stage():
    with new_stage() as stage:
        stage.start()
        stage.go()
        yield stage


@pytest.fixture(scope="module")
def victim(stage):
    with stage.client(stage.new_token("victim", ("travel", "slow"), ("prompt",))) as client:
        yield client


@pytest.fixture(scope="module")
def thief(stage):
    with stage.client(stage.new_token("thief", ("travel",), ("prompt",))) as client:
        yield client


def ask(client, *messages, model="travel", path=CHAT, **more):
    """(what it says, which session)"""
    given = {"input" if path == RESPONSES else "messages": messages}
    answer = client.post(path, json={"model": model, **given, **more})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    said = body["output"][0]["content"][0] if path == RESPONSES else body["choices"][0]["message"]
    return said["text" if path == RESPONSES else "content"], answer.headers["beige-session"]


def test_a_known_history_leads_another_token_nowhere(victim, thief):
    first, session = ask(victim, GO)
    assert first == SAID["content"]
    said, stolen = ask(thief, GO, SAID, TWO)
    assert stolen != session
    assert said != HEARD, "its agent has not heard it"
    assert ask(victim, GO, SAID, TWO) == (HEARD, session), "control: its own token goes on"


@pytest.mark.parametrize(
    ("path", "key"),
    [(CHAT, {"user": "k1"}), (CHAT, {"metadata": {"session": "k2"}}), (RESPONSES, {"conversation": "k3"})],
    ids=["user", "metadata", "conversation"],
)
def test_a_known_key_leads_another_token_nowhere(victim, thief, path, key):
    _, session = ask(victim, GO, path=path, **key)
    said, stolen = ask(thief, TWO, path=path, **key)
    assert stolen != session
    assert said != HEARD
    assert ask(victim, TWO, path=path, **key) == (HEARD, session), "control"


def test_a_known_response_id_leads_another_token_nowhere(victim, thief):
    first = victim.post(RESPONSES, json={"model": "travel", "input": "go"}).json()["id"]

    def after(client, previous):
        return client.post(
            RESPONSES, json={"model": "travel", "input": "two", "previous_response_id": previous}
        )

    stolen, unknown = after(thief, first), after(thief, "resp_never")
    assert stolen.status_code == unknown.status_code == 400
    told = [answer.json()["error"]["message"] for answer in (stolen, unknown)]
    assert told[0].replace(first, "ID") == told[1].replace("resp_never", "ID"), "nor that there is one"
    assert after(victim, first).json()["output"][0]["content"][0]["text"] == HEARD, "control"


def test_a_conversation_with_one_agent_is_not_found_at_another(victim):
    ask(victim, GO)
    first = victim.post(RESPONSES, json={"model": "travel", "input": "go"}).json()["id"]
    body = {"model": "slow", "input": "two", "previous_response_id": first}
    assert victim.post(RESPONSES, json=body).status_code == 400
    _, session = ask(victim, GO, SAID, TWO, model="slow")
    _, keyed = ask(victim, GO, user="one key")
    _, other = ask(victim, GO, user="one key", model="slow")
    names = {info["session"] for info in _sessions(victim, "slow")}
    assert {session, other} <= names
    assert keyed not in names


def _sessions(client, agent):
    return client.get(f"/api/agents/{agent}/sessions").json()["sessions"]


def test_a_new_token_of_an_old_name_does_not_inherit(stage):
    with stage.client(stage.new_token("heir", ("travel",), ("prompt",))) as before:
        _, session = ask(before, GO, user="mine")
    with stage.client(stage.new_token("heir", ("travel",), ("prompt",))) as after:
        assert ask(after, TWO, user="mine")[1] != session
        assert ask(after, GO, SAID, TWO)[0] != HEARD


@pytest.mark.parametrize("name", ["../../keys/http-token", "..", "a/b", "\x00", "travel/../slow", "x" * 512])
def test_a_key_is_never_a_path(stage, victim, name):
    _, session = ask(victim, GO, metadata={"session": name})
    assert session.startswith("openai-")
    assert (stage.home.sessions / "travel" / f"{session}.jsonl").is_file()
    assert {path.name for path in stage.home.sessions.iterdir()} <= {
        "travel",
        "slow",
        "session-settings.json",
    }


@pytest.mark.parametrize("name", ["../slow/x", "..", "a/b", ".hidden", "x" * 129])
def test_a_named_session_is_never_a_path(victim, name):
    body = {"model": "travel", "messages": [GO]}
    answer = victim.post(CHAT, json=body, headers={"x-beige-session": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed")


def test_agents_of_others_are_not_to_be_told_from_none(thief):
    assert [model["id"] for model in thief.get(MODELS).json()["data"]] == ["travel"]
    answers = [
        thief.post(path, json={"model": name, what: value})
        for path, what, value in ((CHAT, "messages", [GO]), (RESPONSES, "input", "go"))
        for name in ("slow", "nobody", "../slow", "slow\x00")
    ]
    answers += [thief.get(f"{MODELS}/{name}") for name in ("slow", "nobody")]
    assert {answer.status_code for answer in answers} == {404}
    assert {answer.json()["error"]["code"] for answer in answers} == {"model_not_found"}
    assert thief.post(CHAT, json={"model": "travel", "messages": [GO]}).status_code == 200, "control"


def test_a_token_needs_its_scope_and_every_refusal_has_openais_shape(stage):
    reader = stage.new_token("reader", ("*",), ("read", "exec", "admin"))
    tried = {reader: 403, "beige_wrong": 401}
    for secret, status in tried.items():
        with stage.client(secret) as client:
            for path, what, value in ((CHAT, "messages", [GO]), (RESPONSES, "input", "go")):
                answer = client.post(path, json={"model": "travel", what: value})
                assert answer.status_code == status
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    with stage.client(headers={"host": "evil.example.org"}) as client:
        refused = client.post(CHAT, json={"model": "travel", "messages": [GO]})
    assert (refused.status_code, refused.json()["error"]["type"]) == (421, "invalid_request_error")


def test_a_revoked_token_hears_no_more(stage):
    go = stage.work / "slow" / "go"
    go.unlink()
    body = {"model": "slow", "messages": [GO], "stream": True}
    with (
        stage.client(stage.new_token("listener", ("slow",), ("prompt",))) as client,
        client.stream("POST", CHAT, json=body) as answer,
    ):
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        assert any("This" in line for line in lines)
        tokens.revoke(stage.home, "listener")
        stage.go()
        last = list(lines)
    assert "Now it is done." not in "".join(last)
    assert json.loads(last[-2][6:])["error"]["code"] == "unauthorized"
    assert last[-1] == "data: [DONE]"
