"""OpenAI's two APIs over a real bus, checked with the official SDK's own types."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.processes.gateway_stage import new_stage, until

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


@pytest.fixture(scope="module")
def stage():
    with new_stage() as stage:
        stage.start()
        yield stage


@pytest.fixture
def own(stage):
    """The same, for tests that end processes: what is missing afterwards is started again."""
    yield stage
    stage.start([name for name in ("llm", "gateway") if name not in stage.house.processes])


@pytest.fixture
def client(stage):
    with sdk(stage) as client:
        yield client


def sdk(stage, token=None):
    transport = httpx.Client(trust_env=False, timeout=60)
    return openai.OpenAI(base_url=f"{stage.url}/v1", api_key=token or stage.token, http_client=transport)


def restart_llm(stage):
    """As supervisord does after kill -9: the next process is asked for the turn, and knows it had begun."""
    stage.house.kill("llm")
    stage.start(["llm"])


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def strict(kind, data):
    """Parsed as the SDK's type, which lets nothing pass: the SDK itself checks nothing."""
    return TypeAdapter(kind).validate_json(data, strict=False)


def chat(stage, *messages, headers=None, **more):
    """(answer, session)."""
    with stage.client(headers=headers or {}) as client:
        answer = client.post(CHAT, json={"model": "travel", "messages": messages, **more})
    assert answer.status_code == 200, answer.text
    completion = strict(ChatCompletion, answer.content)
    return completion.choices[0].message.content, answer.headers["beige-session"]


def prompts(stage, session, agent="travel"):
    lines = (stage.home.sessions / agent / f"{session}.jsonl").read_text().splitlines()
    return [entry["text"] for entry in map(json.loads, lines) if entry["type"] == "prompt"]


def test_agents_are_models(stage, client):
    assert [model.id for model in client.models.list()] == ["travel", "slow"]
    assert client.models.retrieve("travel").owned_by == "beige"
    with sdk(stage, stage.new_token("one", ("slow",), ("prompt",))) as narrow:
        assert [model.id for model in narrow.models.list()] == ["slow"]


def test_a_completion_has_the_exact_shape(stage):
    with stage.client() as client:
        answer = client.post(CHAT, json={"model": "travel", "messages": [user("go")]})
    found = strict(ChatCompletion, answer.content)
    assert found.choices[0].message.content == "It says hello."
    assert found.choices[0].finish_reason == "stop"
    assert found.choices[0].message.tool_calls is None, "the agent's tools ran on our side"
    assert (found.model, found.system_fingerprint) == ("travel", "scripted/m"), "a script is announced"
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens


def test_a_streamed_completion_has_the_exact_shape(stage):
    body = {
        "model": "travel",
        "messages": [user("go")],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with stage.client() as client, client.stream("POST", CHAT, json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    chunks = [strict(ChatCompletionChunk, line[6:]) for line in lines[:-1]]
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert said == "I write a file.\n\nIt says hello."
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None


def test_a_response_has_the_exact_shape(stage):
    body = {"model": "travel", "input": "go", "metadata": {"a": "b"}}
    with stage.client() as client:
        found = strict(Response, client.post(RESPONSES, json=body).content)
    assert found.output_text == "It says hello."
    assert (found.status, found.metadata, found.tools) == ("completed", {"a": "b"}, [])
    assert found.usage.total_tokens == 0, "a script uses none"


def test_a_streamed_response_has_the_exact_shape(stage):
    with (
        stage.client() as client,
        client.stream("POST", RESPONSES, json={"model": "travel", "input": "go", "stream": True}) as answer,
    ):
        lines = list(answer.iter_lines())
    events = [strict(ResponseStreamEvent, line[6:]) for line in lines if line.startswith("data: ")]
    assert [line[7:] for line in lines if line.startswith("event: ")] == [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * deltas,
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    said = "".join(event.delta for event in events if event.type.endswith("text.delta"))
    assert said == events[-1].response.output_text == "I write a file.\n\nIt says hello."


def test_a_history_is_recognised_and_not_run_again(stage):
    first, session = chat(stage, user("go"))
    second, same = chat(stage, user("go"), assistant(f" {first}\n"), user("two"))
    third, again = chat(stage, user("go"), assistant(first), user("two"), assistant(second), user("three"))
    assert (second, third) == ("You said: two", "And again: three")
    assert session == same == again
    assert prompts(stage, session) == ["go", "two", "three"]


def test_another_conversation_with_the_same_words_is_another_session(stage):
    _, one = chat(stage, user("go"))
    _, two = chat(stage, user("go"))
    assert one != two


def test_an_edited_message_forks_the_session_where_it_was_edited(stage):
    first, session = chat(stage, user("go"))
    second, _ = chat(stage, user("go"), assistant(first), user("two"))
    edited, fork = chat(stage, user("go"), assistant(first), user("two, edited"))
    assert (edited, fork != session) == ("You said: two, edited", True)
    assert prompts(stage, session) == ["go", "two"]
    assert prompts(stage, fork) == ["go", "two, edited"]
    _, on = chat(stage, user("go"), assistant(first), user("two"), assistant(second), user("three"))
    assert on == session, "the conversation that was not edited goes on where it was"


def test_a_history_that_the_agent_did_not_hear_is_quoted_in_a_new_session(stage):
    _, session = chat(stage, user("go"))
    _, other = chat(stage, user("go"), assistant("I never said this."), user("two"))
    assert other != session
    (prompt,) = prompts(stage, other)
    assert "user: go" in prompt
    assert "assistant: I never said this." in prompt
    assert prompt.endswith("two")


def test_a_session_that_went_on_elsewhere_is_forked(stage):
    first, session = chat(stage, user("go"))
    with stage.client() as client:
        client.post("/api/agents/travel/prompt", json={"text": "elsewhere", "session": session})
    _, fork = chat(stage, user("go"), assistant(first), user("two"))
    assert prompts(stage, fork) == ["go", "two"]


def test_a_removed_session_is_told_the_history(stage):
    first, session = chat(stage, user("go"))
    with stage.client() as client:
        assert client.delete(f"/api/agents/travel/sessions/{session}").status_code == 200
    _, other = chat(stage, user("go"), assistant(first), user("two"))
    assert other != session
    assert "user: go" in prompts(stage, other)[0]


@pytest.mark.parametrize("more", [{"user": "u-1"}, {"metadata": {"session": "m-1"}}])
def test_a_key_names_the_session_without_a_history(stage, more):
    _, session = chat(stage, user("go"), **more)
    second, same = chat(stage, user("two"), **more)
    assert (second, same) == ("You said: two", session)
    assert prompts(stage, session) == ["go", "two"]


def test_a_header_names_one_of_the_apis_sessions(stage):
    header = {"x-beige-session": "by-header"}
    assert chat(stage, user("go"), headers=header)[1] == "by-header"
    assert chat(stage, user("two"), headers=header) == ("You said: two", "by-header")
    with stage.client(headers={"x-beige-session": "../x"}) as client:
        wrong = client.post(CHAT, json={"model": "travel", "messages": [user("go")]})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "malformed")


def test_a_clients_instructions_are_told_once_and_when_they_change(stage):
    def system(text):
        return {"role": "system", "content": text}

    first, session = chat(stage, system("Be brief."), user("go"))
    second, _ = chat(stage, system("Be brief."), user("go"), assistant(first), user("two"))
    chat(stage, system("Be long."), user("go"), assistant(first), user("two"), assistant(second), user("3"))
    one, two, three = prompts(stage, session)
    assert "Be brief." in one
    assert one.endswith("go")
    assert two == "two"
    assert "Be long." in three


def test_responses_go_on_after_a_response_and_fork_from_an_earlier_one(stage, client):
    first = client.responses.create(model="travel", input="go")
    second = client.responses.create(model="travel", input="two", previous_response_id=first.id)
    other = client.responses.create(model="travel", input="other", previous_response_id=first.id)
    third = client.responses.create(model="travel", input="three", previous_response_id=second.id)
    assert second.output_text == "You said: two"
    assert other.output_text == "You said: other"
    assert third.output_text == "And again: three"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="travel", input="x", previous_response_id="resp_unknown")
    assert refused.value.code == "previous_response_not_found"


def test_a_part_of_a_conversation_is_not_taken_for_it(stage, client):
    first = client.responses.create(model="travel", input="go")
    second = client.responses.create(model="travel", input="two", previous_response_id=first.id)
    _, session = chat(stage, user("two"), assistant(second.output_text), user("three"))
    assert len(prompts(stage, session)) == 1, "the client doesn't know of `go`, so its agent doesn't either"


def test_responses_have_conversations_and_histories(client):
    client.responses.create(model="travel", input="go", conversation="conv_1")
    named = client.responses.create(model="travel", input="two", conversation="conv_1")
    assert (named.output_text, named.conversation.id) == ("You said: two", "conv_1")
    history = [user("go")]
    history += client.responses.create(model="travel", input=history).output
    history.append(user("by history"))
    assert client.responses.create(model="travel", input=history).output_text == "You said: by history"


def test_conversations_survive_a_restart_of_the_gateway(own):
    first, session = chat(own, user("go"))
    own.house.kill("gateway")
    own.start(["gateway"])
    assert chat(own, user("go"), assistant(first), user("two")) == ("You said: two", session)


def test_a_damaged_memory_is_put_aside(own):
    first, session = chat(own, user("go"))
    own.house.stop("gateway")
    own.home.openai_conversations.write_bytes(b"no database" * 1000)
    own.start(["gateway"])
    _, other = chat(own, user("go"), assistant(first), user("two"))
    assert other != session
    assert own.home.openai_conversations.with_suffix(".damaged").exists()
    assert "are forgotten" in own.house.log("gateway")


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_turn_and_can_go_on(stage, path, stream):
    name = f"leaves-{path[-4:]}-{stream}"
    said = {"messages": [user(name)]} if path == CHAT else {"input": name}
    body = {"model": "slow", "stream": stream, "metadata": {"session": name}, **said}
    with stage.client() as client:

        def listed():
            found = client.get("/api/agents/slow/sessions").json()["sessions"]
            return [one for one in found if one.get("title") == name]

        if stream:
            with client.stream("POST", path, json=body) as answer:
                assert any("This" in line for line in answer.iter_lines())
        else:
            leave_unanswered(stage, path, body, lambda: listed() and listed()[0]["outcome"] == "running")
        until(lambda: listed() and listed()[0]["outcome"] == "cancelled", "the turn is cancelled")
        stage.go()
        on = client.post(path, json=body | {"stream": False})
    (stage.work / "slow" / "go").unlink()
    assert on.status_code == 200, on.text
    assert prompts(stage, on.headers["beige-session"], "slow") == [name, name]


def leave_unanswered(stage, path, body, when):
    """Ask, and hang up when `when()` says so."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {stage.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", stage.port), timeout=60) as connection:
        connection.sendall(head.encode() + data)
        until(when, "the turn runs")


def test_a_stopped_answer_is_gone_on_from_with_what_the_client_saw_of_it(stage):
    body = {"model": "slow", "messages": [user("stopped")], "stream": True}
    with stage.client() as client:
        with client.stream("POST", CHAT, json=body) as answer:
            session = answer.headers["beige-session"]
            assert any("This" in line for line in answer.iter_lines())
        path = f"/api/agents/slow/sessions/{session}"
        until(lambda: client.get(path).json()["outcome"] == "cancelled", "the turn is cancelled")
        stage.go()
        messages = [user("stopped"), assistant("This ta"), user("go on")]
        on = client.post(CHAT, json={"model": "slow", "messages": messages})
    (stage.work / "slow" / "go").unlink()
    assert on.status_code == 200, on.text
    assert on.headers["beige-session"] == session
    assert prompts(stage, session, "slow") == ["stopped", "go on"]


def test_the_same_history_twice_at_once_is_two_turns_of_their_own(stage):
    first, _ = chat(stage, user("go"))
    history = [user("go"), assistant(first), user("two")]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: chat(stage, *history), range(4)))
    assert [answer for answer, _ in found] == ["You said: two"] * 4
    assert len({name for _, name in found}) == 4, "none has a turn of another's in it"
    for _, name in found:
        assert prompts(stage, name) == ["go", "two"]


def test_errors_are_the_official_clients_errors(stage, client):
    wrong = [
        (openai.BadRequestError, "unsupported_parameter", {"n": 2}),
        (openai.BadRequestError, "invalid_value", {"messages": [assistant("x")]}),
        (openai.NotFoundError, "model_not_found", {"model": "nobody"}),
    ]
    for kind, code, more in wrong:
        with pytest.raises(kind) as refused:
            client.chat.completions.create(**{"model": "travel", "messages": [user("go")]} | more)
        assert refused.value.code == code
    with sdk(stage, "beige_wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.APIStatusError) as refused:
        client.post("/nowhere", cast_to=object, body={})
    assert refused.value.status_code == 404
    ignored = {"temperature": 0.1, "seed": 7, "max_tokens": 5, "top_p": 1, "store": False}
    assert client.chat.completions.create(model="travel", messages=[user("go")], **ignored).choices


def test_a_turn_that_may_have_been_done_is_not_asked_for_again(own):
    """The official client asks again by itself after an error 502: here it is told not to."""
    (own.work / "slow" / "go").unlink(missing_ok=True)
    with sdk(own) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.responses.create, model="slow", input="once", conversation="lost")
        effects = own.work / "effects"
        seen = effects.read_text().count("echo waiting") if effects.exists() else 0
        until(lambda: effects.exists() and effects.read_text().count("echo waiting") > seen, "it runs")
        restart_llm(own)
        with pytest.raises(openai.APIStatusError) as lost:
            asked.result(60)
    assert (lost.value.status_code, lost.value.code) == (502, "peer_lost")
    assert lost.value.response.headers["x-should-retry"] == "false"
    asked_for = [line for line in own.house.log("gateway").splitlines() if '"status": 502' in line]
    assert len(asked_for) == 1


def test_an_error_in_a_stream_is_its_last_event(own):
    body = {"model": "slow", "messages": [user("go")], "stream": True}
    with sdk(own) as client, own.client() as plain:
        with pytest.raises(openai.APIError) as lost:
            for chunk in client.chat.completions.create(**body):
                if "This" in (chunk.choices[0].delta.content or ""):
                    restart_llm(own)
        assert lost.value.code == "peer_lost"
        body = {"model": "slow", "input": "go", "stream": True}
        with plain.stream("POST", RESPONSES, json=body) as answer:
            lines = []
            for line in answer.iter_lines():
                lines.append(line)
                if '"This' in line and "delta" in line:
                    restart_llm(own)
        last = strict(ResponseStreamEvent, lines[-2][6:])
        assert last.type == "response.failed"
        assert "peer_lost" in last.response.error.message


@pytest.mark.parametrize("stream", [False, True])
def test_without_llm_the_status_tells(own, stream):
    if "llm" in own.house.processes:
        own.house.stop("llm")
    with own.client() as client:
        answer = client.post(CHAT, json={"model": "travel", "stream": stream, "messages": [user("go")]})
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
