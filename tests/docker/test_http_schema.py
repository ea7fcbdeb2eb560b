"""Property-based requests to a real gateway, made by schemathesis from its own OpenAPI document.

In front of a real sandbox: the commands it makes up run in a container.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.gateway_stage import new_stage

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_ready")]
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
CHECKS = [
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_headers_conformance", "response_schema_conformance", "ignored_auth",
    "unsupported_method", "negative_data_rejection",
]  # fmt: skip
EXAMPLES = 4
SEED = "20261129"


@pytest.fixture(scope="module")
def stage():
    with new_stage() as stage:
        for name in ("broker", "policy", "audit", "sandbox", "llm", "gateway"):
            stage.house.start(name)
        yield stage
        log = stage.house.log("gateway").splitlines()
        assert [line[-2000:] for line in log if "Traceback" in line] == []


def run(stage, tmp_path, document=""):
    """schemathesis's report of one run. `document`: another one than the gateway's own."""
    config = tmp_path / "schemathesis.toml"
    config.write_text('[parameters]\n"path.agent" = "travel"\n')
    done = subprocess.run(
        [SCHEMATHESIS, "--config-file", config, "--no-color", "run",
         document or f"{stage.url}/api/openapi.json", "--url", stage.url,
         "-H", f"Authorization: Bearer {stage.token}", "--seed", SEED,
         "--max-examples", str(EXAMPLES), "--phases", "coverage,fuzzing", "--request-timeout", "60",
         "--exclude-path", "/api/gateway/restart", "--checks", ",".join(CHECKS)],
        cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def statuses(stage):
    """Status to how many answers had it, by the access log."""
    found = {}
    for line in stage.house.log("gateway").splitlines():
        entry = json.loads(line)
        if entry["logger"] == "gateway.access":
            found[entry["status"]] = found.get(entry["status"], 0) + 1
    return found


def test_no_request_finds_a_server_error_or_an_answer_that_is_not_documented(stage, tmp_path):
    code, report = run(stage, tmp_path)
    assert code == 0, report
    found = re.search(r"(\d+) generated, (\d+) passed", report)
    assert found[1] == found[2], report
    answered = statuses(stage)
    assert int(found[1]) > 300, "control: it did ask"
    assert answered[200] > 50, "control: and was served, not only refused"
    assert sum(count for status, count in answered.items() if status >= 500) == 0, answered


def test_a_document_that_is_not_true_is_found_out_control(stage, tmp_path):
    with stage.client() as client:
        document = client.get("/api/openapi.json").json()
    document["paths"] = {"/api/agents": document["paths"]["/api/agents"]}
    agent = document["components"]["schemas"]["Agent"]
    agent["properties"]["name"] = {"type": "integer"}
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    code, report = run(stage, tmp_path, str(tmp_path / "openapi.json"))
    assert code == 1, report
    assert "Response violates schema" in report
