"""Real clients of OpenAI's API hold a conversation with an agent that works in its container."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.processes.gateway_stage import Stage

pytestmark = pytest.mark.docker
SCRIPT = """[
  { say: "I write it down.", tool: "exec", args: { command: "printf %s '{{prompt}}' >word; id -u" } },
  { say: "Done, as {{last.stdout}}." },
  { say: "I look it up.", tool: "exec", args: { command: "cat word" } },
  { say: "It was {{last.stdout}}." },
]"""
FIRST, SECOND = "Done, as 64000.", "It was {}."
"""Of the last model call alone; a stream has what was said before, too. Uid 64000 is the container's."""
STREAMED = ("I write it down.\n\n" + FIRST, "I look it up.\n\n" + SECOND)
ASK = "What did I say?"


@pytest.fixture(scope="module")
def stage(make_house: Any, sandbox_image: str) -> Iterator[Stage]:
    agent = {"model": {"provider": "demo", "model": "m"}, "tools": [], "sandbox": {"image": sandbox_image}}
    with make_house({"travel": agent}) as house:
        (house.home.root / "script.json5").write_text(SCRIPT)
        config = json.loads(house.home.config.read_text())
        house.home.config.write_text(json.dumps(config | {"gateway": {"port": 0}}))
        house.start("llm")
        house.start("gateway")
        yield Stage(house)


@pytest.fixture
def base(stage: Stage) -> str:
    return f"{stage.url}/v1"


@pytest.fixture(autouse=True)
def worked(stage: Stage) -> Iterator[None]:
    """Each conversation ran one command per turn in the container, decided and written down."""
    before = _executed(stage)
    yield
    assert _executed(stage) - before == 2
    assert stage.house.containers() == [stage.house.container("travel")]


def _executed(stage: Stage) -> int:
    log = stage.home.audit_log
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return sum(r.get("tool") == "exec" and r.get("phase") == "started" for r in records)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture
def client(stage: Stage, base: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base, api_key=stage.token, http_client=httpx.Client(trust_env=False)) as sdk:
        yield sdk


def test_the_official_client_chats(client: openai.OpenAI) -> None:
    messages: list[Any] = [user("sdk-chat")]
    first = client.chat.completions.create(model="travel", messages=messages).choices[0].message
    assert first.content == FIRST
    messages += [first.model_dump(exclude_none=True), user(ASK)]
    second = client.chat.completions.create(model="travel", messages=messages)
    assert second.choices[0].message.content == SECOND.format("sdk-chat")


def test_the_official_client_chats_streaming(client: openai.OpenAI) -> None:
    def said(messages: list[Any]) -> str:
        chunks = client.chat.completions.create(model="travel", messages=messages, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    first = said([user("sdk-stream")])
    second = said([user("sdk-stream"), {"role": "assistant", "content": first}, user(ASK)])
    assert (first, second) == (STREAMED[0], STREAMED[1].format("sdk-stream"))


def test_the_official_client_uses_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model="travel", input="sdk-responses")
    second = client.responses.create(model="travel", input=ASK, previous_response_id=first.id)
    assert (first.output_text, second.output_text) == (FIRST, SECOND.format("sdk-responses"))


def test_the_official_client_uses_responses_streaming(client: openai.OpenAI) -> None:
    with client.responses.stream(model="travel", input="sdk-events") as events:
        first = events.get_final_response()
    with client.responses.stream(model="travel", input=ASK, previous_response_id=first.id) as events:
        said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        second = events.get_final_response()
    assert first.output_text == STREAMED[0]
    assert said == second.output_text == STREAMED[1].format("sdk-events")


def test_httpx_chats(stage: Stage, base: str) -> None:
    headers = {"authorization": f"Bearer {stage.token}"}
    with httpx.Client(base_url=base, headers=headers, timeout=60, trust_env=False) as client:

        def said(*messages: dict[str, str]) -> dict[str, str]:
            answer = client.post("/chat/completions", json={"model": "travel", "messages": messages})
            return answer.raise_for_status().json()["choices"][0]["message"]

        first = said(user("httpx"))
        assert said(user("httpx"), first, user(ASK))["content"] == SECOND.format("httpx")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_curl_chats(stage: Stage, base: str, stream: bool) -> None:
    def curl(*messages: dict[str, str]) -> str:
        body = json.dumps({"model": "travel", "messages": messages, "stream": stream})
        out = run("curl", "-sS", "-N", "--fail-with-body", "-H", f"Authorization: Bearer {stage.token}",
                  "--json", body, f"{base}/chat/completions")  # fmt: skip
        if not stream:
            return str(json.loads(out)["choices"][0]["message"]["content"])
        data = [line.removeprefix("data: ") for line in out.splitlines() if line.startswith("data: ")]
        assert data.pop() == "[DONE]"
        return "".join(json.loads(one)["choices"][0]["delta"].get("content", "") for one in data)

    word = f"curl-{stream}"
    first = curl(user(word))
    second = curl(user(word), {"role": "assistant", "content": first}, user(ASK))
    expected = STREAMED if stream else (FIRST, SECOND)
    assert (first, second) == (expected[0], expected[1].format(word))


@pytest.mark.parametrize("how", [[], ["--no-stream"]], ids=["stream", "whole"])
def test_the_llm_command_line_chats(stage: Stage, base: str, tmp_path: Path, how: list[str]) -> None:
    models = [{"model_id": "assistant", "model_name": "travel", "api_base": base, "api_key_name": "beige"}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    program = str(Path(sys.executable).with_name("llm"))
    word = f"llm{''.join(how)}"

    def llm(*arguments: str) -> str:
        return run(program, *arguments, LLM_USER_PATH=str(tmp_path)).strip()

    llm("keys", "set", "beige", "--value", stage.token)
    first, second = llm("-m", "assistant", *how, word), llm("-c", *how, ASK)
    expected = (FIRST, SECOND) if how else STREAMED
    assert (first, second) == (expected[0], expected[1].format(word))


def run(*command: str, **environ: str) -> str:
    """Standard output of a client program that ends well."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=90, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
