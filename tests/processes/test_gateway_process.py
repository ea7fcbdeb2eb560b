"""The gateway as a process: its tokens and sockets, what it keeps to itself, what it says when others die."""

import json
import signal
import socket
import stat
import subprocess
from pathlib import Path

import httpx
import pytest

from beige import tokens
from tests.processes.gateway_stage import CANARIES, PROMPT, begin_slow, events_of, new_stage, until


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


def test_tokens_count_from_the_next_request_on(stage):
    secret = stage.new_token("ci", ("travel",), ("read",))
    with stage.client(secret) as client:
        assert client.get("/api/agents/travel/models").status_code == 200
        assert [a["name"] for a in client.get("/api/agents").json()["agents"]] == ["travel"]
        tokens.revoke(stage.home, "ci")
        assert client.get("/api/agents/travel/models").status_code == 401


def test_a_revoked_token_ends_its_streams(stage):
    secret = stage.new_token("listener", ("slow",), ("prompt",))
    with stage.client(secret) as client:
        body = {"text": "go", "session": "listened", "stream": True}
        with client.stream("POST", PROMPT.format("slow"), json=body) as answer:
            lines = answer.iter_lines()
            while json.loads(next(lines))["kind"] != "tool_output":
                pass
            tokens.revoke(stage.home, "listener")
            stage.go()
            last = [json.loads(line) for line in lines]
    (stage.work / "slow" / "go").unlink()
    assert [event["kind"] for event in last] == ["error"]
    assert last[0]["error"]["code"] == "unauthorized"


def test_the_unix_socket_is_private_and_serves_the_same(stage):
    info = stage.home.http_socket.stat()
    assert stat.S_ISSOCK(info.st_mode)
    assert stat.S_IMODE(info.st_mode) == 0o600
    transport = httpx.HTTPTransport(uds=str(stage.home.http_socket))
    with stage.client(transport=transport) as client:
        assert client.get("http://localhost/api/agents").status_code == 200
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(stage.home.http_socket))) as client:
        assert client.get("http://localhost/api/agents").status_code == 401, "a token is needed here too"


def test_curl_holds_a_conversation(stage):
    def curl(text):
        done = subprocess.run(
            ["curl", "-sS", "--fail-with-body", "-H", f"Authorization: Bearer {stage.token}", "--json",
             json.dumps({"text": text, "session": "curl"}), stage.url + PROMPT.format("travel")],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)["text"]

    assert curl("go") == "It says hello."
    assert curl("remember me") == "You said: remember me"


def test_httpx_holds_a_conversation(stage):
    with stage.client() as client:
        for said, answer in (
            ("go", "It says hello."),
            ("two", "You said: two"),
            ("three", "And again: three"),
        ):
            body = {"text": said, "session": "httpx", "stream": True}
            with client.stream("POST", PROMPT.format("travel"), json=body) as stream:
                assert events_of(stream)[-1]["text"] == answer


def test_the_access_log_holds_no_token_and_no_word_of_a_conversation(stage):
    with stage.client() as client:
        client.post(PROMPT.format("travel"), json={"text": "the-word-of-a-conversation"})
        client.get("/api/agents", params={"x": "in-the-query"})
    log = stage.house.log("gateway")
    lines = [json.loads(line) for line in log.splitlines() if '"gateway.access"' in line]
    assert {"method", "path", "status", "ms", "token"} <= set(lines[-1])
    assert lines[-1]["token"] == "setup"
    for secret in (stage.token, "the-word-of-a-conversation", "in-the-query", *CANARIES):
        assert secret not in log


def test_the_process_holds_no_key_and_no_way_to_docker(stage):
    environ = Path(f"/proc/{stage.house.processes['gateway'].pid}/environ").read_text()
    assert "DOCKER" not in environ
    assert "API_KEY" not in environ


def test_a_dead_llm_process_ends_its_prompts_in_an_error(own):
    with own.client() as client:
        seen = begin_slow(own, client, "killed")
        own.house.kill("llm")
        own.start(["llm"])
        with client.stream("GET", "/api/agents/slow/sessions/killed/events",
                           headers={"last-event-id": seen[-1]["id"]}) as answer:  # fmt: skip
            last = events_of(answer)[-1]
    assert last["kind"] == "error"
    assert last["error"]["code"] in ("peer_lost", "unavailable"), "the latter if the next llm starts slowly"
    assert last["error"]["executed"] == "maybe"


def test_without_llm_a_prompt_ends_with_unavailable(own):
    own.house.stop("llm")
    with own.client() as client:
        answer = client.post(PROMPT.format("travel"), json={"text": "go"})
        assert client.get("/api/health").json()["ok"] is True
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"]


def test_stopping_ends_streams_in_an_error_and_resuming_says_what_is_gone(own):
    with own.client() as client:
        body = {"text": "go", "session": "kept", "stream": True}
        with client.stream("POST", PROMPT.format("slow"), json=body) as answer:
            lines = answer.iter_lines()
            seen = [json.loads(next(lines))]
            while seen[-1]["kind"] != "tool_output":
                seen.append(json.loads(next(lines)))
            own.house.processes["gateway"].send_signal(signal.SIGTERM)
            last = [json.loads(line) for line in lines][-1]
        assert last["error"]["code"] == "cancelled"
        assert own.wait_for_its_end("gateway") == 0
        assert not own.home.http_address.exists()
        own.start(["gateway"])
    with own.client() as client:
        answer = client.get(
            "/api/agents/slow/sessions/kept/events", headers={"last-event-id": seen[-1]["id"]}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "gone")
    session = (own.home.sessions / "slow" / "kept.jsonl").read_text()
    assert '"turn_end"' in session, "the file has the truth"


def test_a_restart_is_refused_while_the_configuration_is_wrong(own):
    good = own.home.config.read_text()
    with own.client() as client:
        own.home.config.write_text("{")
        refused = client.post("/api/gateway/restart")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "config")
        assert client.get("/api/health").json()["ok"] is True
        own.home.config.write_text(good)
        assert client.post("/api/gateway/restart").status_code == 202
    assert own.wait_for_its_end("gateway") == 0


def test_a_port_that_is_taken_is_said_and_tried_again():
    with socket.create_server(("127.0.0.1", 0)) as taken, new_stage(port=taken.getsockname()[1]) as stage:
        stage.start(["broker", "gateway"])
        transport = httpx.HTTPTransport(uds=str(stage.home.http_socket))
        with httpx.Client(transport=transport) as client:
            health = client.get("http://localhost/api/health").json()
            assert health["ok"] is False
            assert (
                f"can't listen at 127.0.0.1:{stage_port(stage)} (Address already in use)" in health["problem"]
            )
            assert "set gateway.port" in stage.house.log("gateway")
            taken.close()
            until(lambda: client.get("http://localhost/api/health").json()["ok"], "it serves when it can")
        with stage.client() as client:
            assert client.get("/api/health").status_code == 200


def stage_port(stage):
    return json.loads(stage.home.config.read_text())["gateway"]["port"]


def test_https_with_a_certificate(tmp_path):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        cwd=tmp_path, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    files = {"cert": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    with new_stage(tls=files) as stage:
        stage.start(["broker", "gateway"])
        assert stage.url.startswith("https://")
        ran = subprocess.run(
            ["curl", "-sS", "--cacert", files["cert"], f"{stage.url}/api/health"],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        assert json.loads(ran.stdout)["ok"] is True
        plain = subprocess.run(
            ["curl", "-sS", stage.url.replace("https", "http") + "/api/health"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert plain.returncode != 0, "no plain HTTP at the same door"


def test_a_home_without_tokens_says_what_to_do(home):
    with new_stage() as stage:
        stage.start(["broker"])
        stage.home.http_tokens.unlink()
        stage.start(["gateway"])
        with httpx.Client(base_url=stage.url) as client:
            assert client.get("/api/agents", headers={"authorization": "Bearer x"}).status_code == 401
        assert "run `beige setup`" in stage.house.log("gateway")
        tokens.ensure(stage.home)
        with stage.client() as client:
            assert client.get("/api/agents").status_code == 200
