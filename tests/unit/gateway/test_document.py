"""The OpenAPI document holds together, and the page about the API names everything in it."""

import json
import re
from pathlib import Path

import pytest

from services.gateway.errors import STATUS
from services.gateway.openapi import ALWAYS, BUS, MEANING, document
from services.gateway.routes import ENDPOINTS

PAGE = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
DOCUMENT = document(ENDPOINTS, "1.2.3")
ONE = "/api/agents/{agent}/sessions/{session}"


def test_it_says_who_it_is_and_is_json():
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
    assert (DOCUMENT["openapi"], DOCUMENT["info"]["version"]) == ("3.1.0", "1.2.3")


def test_every_reference_leads_somewhere():
    schemas = DOCUMENT["components"]["schemas"]
    found = re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(DOCUMENT))
    assert len(found) > 30
    assert set(found) <= set(schemas)


def test_operations_have_names_of_their_own_and_parameters_for_their_paths():
    operations = [(path, op) for path, methods in DOCUMENT["paths"].items() for op in methods.values()]
    names = [operation["operationId"] for _, operation in operations]
    assert len(set(names)) == len(names) == len(ENDPOINTS)
    for path, operation in operations:
        named = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))


def test_only_health_is_public_and_the_rest_says_what_a_token_needs():
    assert [endpoint.path for endpoint in ENDPOINTS if endpoint.public] == ["/api/health"]
    free = {endpoint.path for endpoint in ENDPOINTS if not endpoint.scopes}
    assert free == {"/api/health", "/api/agents", "/api/openapi.json"}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_the_page_names_the_path_and_its_scopes(endpoint):
    shown = {endpoint.path, endpoint.path.replace(ONE, ".../{session}")}
    rows = [row for row in PAGE.splitlines() if row.startswith("|") and any(f"{p}`" in row for p in shown)]
    rows = [row for row in rows if endpoint.method in row]
    assert rows, f"{endpoint.method} {endpoint.path} is not on the page"
    assert any(all(scope in row for scope in endpoint.scopes) for row in rows)


def test_the_page_explains_every_status_and_code():
    table = PAGE.partition("## Errors")[2].partition("\n## ")[0]
    for code, status in STATUS.items():
        assert f"`{code}`" in table, code
        assert str(status) in table, status
    assert set(ALWAYS) | set(BUS) <= set(MEANING)
