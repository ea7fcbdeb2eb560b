"""The HTTP API as its clients see it: prompts, streams that survive, sessions, exec, the audit log."""

import json

import pytest

from tests.processes.gateway_stage import CANARIES, PROMPT, begin_slow, events_of, new_stage, until


@pytest.fixture(scope="module")
def stage():
    with new_stage() as stage:
        stage.start()
        yield stage


def texts(events):
    return "".join(event.get("text", "") for event in events if event["kind"] == "text_delta")


def sse_events(lines):
    """(id, event, data) of each event of an SSE stream."""
    fields = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
            fields = {}


def test_a_prompt_is_answered_as_json(stage):
    with stage.client() as client:
        done = client.post(PROMPT.format("travel"), json={"text": "go", "session": "json"})
    assert done.status_code == 200, done.text
    assert done.json()["text"] == "It says hello."
    assert (done.json()["tool_calls"], done.json()["session"]) == (2, "json")


def test_a_prompt_without_a_session_begins_one(stage):
    with stage.client() as client:
        first = client.post(PROMPT.format("travel"), json={"text": "go"}).json()
        second = client.post(
            PROMPT.format("travel"), json={"text": "two", "session": first["session"]}
        ).json()
    assert second["text"] == "You said: two"
    assert (stage.home.sessions / "travel" / f"{first['session']}.jsonl").exists()


def test_a_prompt_is_streamed_as_lines_of_json(stage):
    with (
        stage.client() as client,
        client.stream("POST", PROMPT.format("travel"), json={"text": "go", "stream": True}) as answer,
    ):
        assert answer.headers["content-type"] == "application/x-ndjson"
        events = events_of(answer)
    assert [int(event["id"].rpartition("-")[2]) for event in events] == list(range(1, len(events) + 1))
    assert texts(events) == "I write a file.It says hello."
    assert events[-1]["kind"] == "result"
    assert events[-1]["text"] == "It says hello."


def test_a_prompt_is_streamed_as_server_sent_events(stage):
    accept = {"accept": "text/event-stream"}
    with (
        stage.client() as client,
        client.stream(
            "POST", PROMPT.format("travel"), json={"text": "go", "stream": True}, headers=accept
        ) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = list(sse_events(answer.iter_lines()))
    job = answer.headers["beige-job"]
    assert [event[0] for event in events] == [f"{job}-{n}" for n in range(1, len(events) + 1)]
    assert all(data["kind"] == kind for _, kind, data in events)
    assert events[-1][1] == "result"


def test_a_dropped_client_comes_back_and_misses_nothing(stage):
    with stage.client() as client:
        seen = begin_slow(stage, client, "dropped")
        stage.go()
        events = "/api/agents/slow/sessions/dropped/events"
        with client.stream("GET", events, headers={"last-event-id": seen[-1]["id"]}) as answer:
            rest = events_of(answer)
        with client.stream("GET", events, params={"after": seen[1]["id"]}) as answer:
            again = events_of(answer)
        with client.stream("GET", events) as answer:
            whole = events_of(answer)
    assert seen + rest == whole
    assert seen[:2] + again == whole
    assert rest[-1]["text"] == "Now it is done."
    (stage.work / "slow" / "go").unlink()


def test_a_client_that_asked_for_it_ends_the_turn_by_leaving(stage):
    with stage.client() as client:
        begin_slow(stage, client, "cancelled", cancelOnDisconnect=True)
        with client.stream("GET", "/api/agents/slow/sessions/cancelled/events") as answer:
            events = events_of(answer)
    assert events[-1]["kind"] == "error"
    assert events[-1]["error"]["code"] == "cancelled"
    until(lambda: "killed echo waiting" in (stage.work / "effects").read_text(), "the command is killed")


def test_many_clients_follow_one_prompt(stage):
    with stage.client() as client:
        begin_slow(stage, client, "many")
        stage.go()
        path = "/api/agents/slow/sessions/many/events"
        found = [client.get(path).text for _ in range(3)]
        as_sse = client.get(path, headers={"accept": "text/event-stream"}).text
    (stage.work / "slow" / "go").unlink()
    assert found[0] == found[1] == found[2]
    assert as_sse.count("\nevent: ") == len(found[0].splitlines())


def test_one_core_tool_call_is_governed_and_audited(stage):
    with stage.client() as client:

        def call(tool, **params):
            return client.post("/api/agents/travel/exec", json={"tool": tool, "params": params})

        assert call("write", path="b.txt", content="one\n").json()["created"] is True
        assert call("read", path="b.txt").json()["content"] == "one\n"
        assert call("patch", path="b.txt", old="one", new="two").json()["replacements"] == 1
        ran = call("exec", command="cat b.txt; echo no >&2; exit 3").json()
        assert (ran["exitCode"], ran["stdout"], ran["stderr"]) == (3, "two\n", "no\n")
        missing = call("read", path="c.txt")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
        assert call("write", path="big", content="x" * 700_000).json()["size"] == 700_000
        assert call("write", path="raw", content="AP8=", encoding="base64").json()["size"] == 2
        assert call("write", path="raw", content="???", encoding="base64").status_code == 400
    log = stage.home.audit_log.read_text().splitlines()
    mine = [record for record in map(json.loads, log) if record["src"] == "gateway/0"]
    assert {"write", "read", "patch", "exec"} <= {record["tool"] for record in mine}
    assert {record["channel"] for record in mine} == {"http:setup"}


def test_the_records_and_the_session_say_whose_token_it_was(stage):
    for name in ("ci", "phone"):
        with stage.client(stage.new_token(name)) as client:
            asked = {"text": "go", "session": f"of-{name}"}
            assert client.post(PROMPT.format("travel"), json=asked).status_code == 200
    log = [json.loads(line) for line in stage.home.audit_log.read_text().splitlines()]
    for name in ("ci", "phone"):
        mine = [record for record in log if record.get("session") == f"of-{name}"]
        assert {record["tool"] for record in mine} >= {"write", "exec", "model"}, "the turn's own calls"
        assert {record["channel"] for record in mine} == {f"http:{name}"}
        session = stage.home.sessions / "travel" / f"of-{name}.jsonl"
        lines = map(json.loads, session.read_text().splitlines())
        prompts = [line for line in lines if line["type"] == "prompt"]
        assert [line["channel"] for line in prompts] == [f"http:{name}"]


def test_errors_have_one_shape_and_a_code(stage):
    with stage.client() as client:
        for method, path, status, code in [
            ("GET", "/api/agents/nobody/models", 404, "not_found"),
            ("GET", "/nowhere", 404, "not_found"),
            ("PUT", "/api/agents", 405, "method_not_allowed"),
            ("GET", "/api/agents/travel/sessions/none/events", 404, "not_found"),
            ("GET", "/api/agents/travel/sessions/none/events?after=0123456789abcdef-3", 410, "gone"),
            ("GET", "/api/agents?x=1", 400, "malformed"),
        ]:
            answer = client.request(method, path)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["executed"]) == (status, code, "no"), path
        wrong = client.post(PROMPT.format("travel"), json={"txt": "go"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "malformed")
        assert "txt" in wrong.json()["error"]["message"]


def test_config_and_agents_show_no_secret(stage):
    with stage.client() as client:
        shown = (
            client.get("/api/config").text + client.get("/api/agents").text + client.get("/api/status").text
        )
    assert '"anthropic-messages"' in shown, "control: the provider is there"
    assert not any(canary in shown for canary in CANARIES)
    assert all(canary in stage.home.config.read_text() for canary in CANARIES), "control"


def test_settings_of_a_session_are_changed_and_taken_back(stage):
    path = "/api/agents/travel/sessions/settings/settings"
    with stage.client() as client:
        assert client.get(path).json()["settings"]["verbose"] == {"value": False, "layer": "system"}
        changed = client.patch(path, json={"verbose": True}).json()
        assert changed["settings"]["verbose"] == {"value": True, "layer": "session"}
        back = client.patch(path, json={"verbose": None}).json()
        assert back["settings"]["verbose"]["layer"] == "system"


def test_sessions_are_listed_read_copied_and_removed(stage):
    base = "/api/agents/travel/sessions"
    with stage.client() as client:
        name = client.post(base).json()["session"]
        assert client.get(f"{base}/{name}").status_code == 404, "it exists with its first prompt"
        client.post(PROMPT.format("travel"), json={"text": "go", "session": name})
        assert name in [
            info["session"] for info in client.get(base, params={"limit": 1000}).json()["sessions"]
        ]
        assert client.get(f"{base}/{name}").json()["prompts"] == 1
        history = client.get(f"{base}/{name}/history").json()
        assert [entry["type"] for entry in history["entries"]][:2] == ["session", "prompt"]
        assert history["next"] == len(history["entries"])
        rest = client.get(f"{base}/{name}/history", params={"after": 2}).json()
        assert rest["entries"] == history["entries"][2:]
        copy = client.post(f"{base}/{name}/fork", json={"to": "copy"})
        assert (copy.status_code, copy.json()["forked_from"]) == (201, name)
        said = client.post(PROMPT.format("travel"), json={"text": "two", "session": "copy"}).json()
        assert said["text"] == "You said: two"
        assert client.delete(f"{base}/copy").status_code == 200
        assert client.get(f"{base}/copy").status_code == 404
        assert client.post(f"{base}/{name}/compact", json={}).status_code == 422, "a script can't summarise"


def test_cancel_ends_a_prompt_whoever_made_it(stage):
    with stage.client() as client:
        begin_slow(stage, client, "to-cancel")
        done = client.post("/api/agents/slow/sessions/to-cancel/cancel")
        assert (done.status_code, done.json()) == (200, {"cancelled": 1})
        last = events_of(client.get("/api/agents/slow/sessions/to-cancel/events"))[-1]
    assert (last["kind"], last["error"]["code"]) == ("error", "cancelled")


def test_the_audit_log_is_asked_through_audit(stage):
    only = stage.new_token("auditor", ("slow",), ("read",))
    with stage.client() as client:
        client.post("/api/agents/travel/exec", json={"tool": "exec", "params": {"command": "echo asked"}})
        page = client.get("/api/audit", params={"agent": "travel", "tool": "exec", "limit": 1}).json()
        newest = page["records"][0]
        assert (newest["agent"], newest["tool"], newest["src"]) == ("travel", "exec", "gateway/0")
        older = client.get("/api/audit", params={"before": page["before"], "limit": 500}).json()["records"]
        assert all(record["ts"] < newest["ts"] for record in older)
    with stage.client(only) as client:
        assert {record["agent"] for record in client.get("/api/audit").json()["records"]} <= {"slow"}
        assert client.get("/api/audit", params={"agent": "travel"}).status_code == 403


def chat(client, **body):
    with client.stream("POST", "/api/chat/stream", json={"agent": "travel", **body}) as answer:
        assert answer.status_code == 200, answer.read()
        return events_of(answer)


def test_one_model_call_for_a_loop_of_the_clients_own(stage):
    """The script asks for a tool, the client answers it as it likes; nothing is executed here."""
    before = (stage.work / "effects").read_text()
    with stage.client() as client:
        asked = [{"role": "user", "content": "go"}]
        first = chat(client, messages=asked)
        assert [event["kind"] for event in first if event["kind"] != "text_delta"] == ["tool_call", "done"]
        call, done = first[-2], first[-1]
        assert (call["tool"], call["args"]["path"], done["scripted"]) == ("write", "a.txt", True)
        calls = [{"id": call["tool_id"], "name": call["tool"], "args": call["args"]}]
        asked.append({"role": "assistant", "content": done["text"], "tool_calls": calls})
        asked.append({"role": "tool", "tool_id": call["tool_id"], "content": "done"})
        second = chat(client, messages=asked)
        assert second[-2]["tool"] == "exec"
    assert (stage.work / "effects").read_text() == before
    assert not list((stage.home.sessions / "travel").glob("*chat*"))


def test_a_chat_may_only_use_the_agents_own_models(stage):
    hello = [{"role": "user", "content": "x"}]
    with stage.client() as client:
        (refused,) = chat(client, messages=hello, model="secret/m")
        assert (refused["kind"], refused["error"]["code"]) == ("error", "malformed")
        assert chat(client, messages=hello, model="quick/m")[-1]["kind"] == "done", "control"
        assert client.post("/api/chat/stream", json={"agent": "nobody", "messages": hello}).status_code == 404
    with stage.client(stage.new_token("not-travel", ("slow",), ("prompt",))) as client:
        assert client.post("/api/chat/stream", json={"agent": "travel", "messages": hello}).status_code == 403
