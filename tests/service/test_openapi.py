"""The description is complete, has examples that are true, and only grows."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest

from feinsum.records import TuningRecord, from_json
from tests.service.additive import breaking_changes

GOLDEN = Path(__file__).with_name("openapi.json")
"""The description that clients rely on. To let it grow, run
``python -m tests.service.test_openapi`` with additions only."""


@pytest.fixture
def document(client):
    return client.get("/openapi.json").json()


def test_changes_are_additions(document):
    """Nothing that a client of the stored description relies on is gone."""
    assert breaking_changes(json.loads(GOLDEN.read_text()), document) == []


def test_the_stored_description_is_the_present_one(document):
    """Additions are stored as well, so that the next change is compared with them."""
    assert json.loads(GOLDEN.read_text()) == document


def test_every_answer_has_an_example(document):
    """Every answer with a body shows one."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                for kind, content in answer.get("content", {}).items():
                    has = "example" in content or "example" in _schema(
                        document, content
                    )
                    assert has, f"{method} {path} {status} {kind}"


def _schema(document, content):
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"].get(name, {})


def test_examples_of_facts_are_facts(document):
    """The example of a fact is one that could be recorded."""
    operation = document["paths"]["/v1/facts/{record_id}"]["get"]
    example = operation["responses"]["200"]["content"]["application/json"]["example"]
    assert from_json(TuningRecord, json.dumps(example)).measurement.speedup > 1


def test_every_route_under_v1_may_be_refused(document):
    """Every route names the problems that any request can meet."""
    for path, methods in document["paths"].items():
        if path.startswith("/v1/"):
            for operation in methods.values():
                assert {"401", "403", "422", "429", "503"} <= set(
                    operation["responses"]
                )


def parameter_gone(document):
    operation = document["paths"]["/v1/best/{key}"]["get"]
    operation["parameters"] = [
        p for p in operation["parameters"] if p["name"] != "device"
    ]
    return "GET /v1/best/{key}: parameter device gone"


def path_gone(document):
    del document["paths"]["/v1/workloads"]
    return "/v1/workloads: gone"


def method_gone(document):
    del document["paths"]["/v1/facts"]["post"]
    return "POST /v1/facts: gone"


def answer_gone(document):
    del document["paths"]["/v1/best/{key}"]["get"]["responses"]["304"]
    return "GET /v1/best/{key}: answer 304 gone"


def required_property(document):
    document["components"]["schemas"]["Batch"]["required"].append("device")
    return "POST /v1/best:batch: body.device: is required now"


def property_gone(document):
    del document["components"]["schemas"]["Canonical"]["properties"]["key"]
    return "POST /v1/canonicalize: answer 200.key: gone"


def narrower(document):
    batch = document["components"]["schemas"]["Batch"]
    batch["properties"]["device"]["maxLength"] = 3
    return "POST /v1/best:batch: body.device: maxLength is 3 now"


def another_type(document):
    workload = document["components"]["schemas"]["Workload"]
    workload["properties"]["n_facts"]["type"] = "string"
    place = "GET /v1/workloads: answer 200.workloads[].n_facts"
    return f"{place}: was integer, is string"


def new_required_parameter(document):
    new = {"name": "x", "in": "query", "required": True, "schema": {}}
    document["paths"]["/v1/devices"]["get"]["parameters"].append(new)
    return "GET /v1/devices: parameter x is required now"


def value_gone(document):
    (policy,) = [
        p
        for p in document["paths"]["/v1/best/{key}"]["get"]["parameters"]
        if p["name"] == "policy"
    ]
    policy["schema"]["enum"].remove("loose")
    return "GET /v1/best/{key}: parameter policy: 'loose' is not taken any more"


@pytest.mark.parametrize(
    "change",
    [
        parameter_gone,
        path_gone,
        method_gone,
        answer_gone,
        required_property,
        property_gone,
        narrower,
        another_type,
        new_required_parameter,
        value_gone,
    ],
)
def test_a_breaking_change_is_named(document, change):
    """Whatever a client relies on is missed when it is gone."""
    changed = deepcopy(document)
    message = change(changed)
    assert message in breaking_changes(document, changed)


def test_additions_break_nothing(document):
    """New paths, answers, properties and optional parameters may come."""
    changed = deepcopy(document)
    changed["paths"]["/v1/new"] = changed["paths"]["/v1/devices"]
    operation = changed["paths"]["/v1/best/{key}"]["get"]
    operation["parameters"].append({"name": "x", "in": "query", "schema": {}})
    operation["responses"]["410"] = {"description": "gone"}
    schemas = changed["components"]["schemas"]
    schemas["Workload"]["properties"]["new"] = {"type": "string"}
    schemas["Batch"]["properties"]["new"] = {"type": "string"}
    schemas["Batch"]["properties"]["device"]["maxLength"] = 10_000
    assert breaking_changes(document, changed) == []
    assert breaking_changes(document, document) == []


if __name__ == "__main__":
    import sys
    import tempfile

    from feinsum.service import Settings, create_app

    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(database=f"{folder}/facts.sqlite"))
        found = json.loads(json.dumps(app.openapi()))
        app.state.service.lookup.close()
        app.state.service.store.close()
    if GOLDEN.exists() and (
        broken := breaking_changes(json.loads(GOLDEN.read_text()), found)
    ):
        sys.exit("\n".join(["not additive:", *broken]))
    GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
