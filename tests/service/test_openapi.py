"""The description is complete, and only grows."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest

from tests.service.additive import breaking_changes

GOLDEN = Path(__file__).with_name("openapi.json")
"""The description that clients rely on. To let it grow, run
``python -m tests.service.test_openapi`` with additions only."""


@pytest.fixture
def document(client):
    return client.get("/openapi.json").json()


def test_the_stored_description_is_the_present_one(document):
    """Nothing that a client of it relies on is gone, and additions are stored as well,
    so that the next change is compared with them.
    """
    stored = json.loads(GOLDEN.read_text())
    assert breaking_changes(stored, document) == []
    assert stored == document


def test_every_route_under_v1_may_be_refused(document):
    """Every route names the problems that any request can meet."""
    for path, methods in document["paths"].items():
        if path.startswith("/v1/"):
            for operation in methods.values():
                assert {"401", "403", "422", "429", "503"} <= set(
                    operation["responses"]
                )


BEST = ("paths", "/v1/best/{key}", "get")

CHANGES = {
    "GET /v1/best/{key}: parameter device gone": lambda d: remove_parameter(d),
    "/v1/workloads: gone": lambda d: d["paths"].pop("/v1/workloads"),
    "POST /v1/facts: gone": lambda d: d["paths"]["/v1/facts"].pop("post"),
    "GET /v1/best/{key}: answer 304 gone": lambda d: at(d, *BEST, "responses").pop(
        "304"
    ),
    "POST /v1/best:batch: body.device: is required now": lambda d: schema(d, "Batch")[
        "required"
    ].append("device"),
    "POST /v1/canonicalize: answer 200.key: gone": lambda d: schema(d, "Canonical")[
        "properties"
    ].pop("key"),
    "POST /v1/best:batch: body.device: maxLength is 3 now": lambda d: schema(
        d, "Batch"
    )["properties"]["device"].update(maxLength=3),
    "GET /v1/workloads: answer 200.workloads[].n_facts: was integer, is string": (
        lambda d: schema(d, "Workload")["properties"]["n_facts"].update(type="string")
    ),
    "GET /v1/devices: parameter x is required now": lambda d: at(
        d, "paths", "/v1/devices", "get", "parameters"
    ).append({"name": "x", "in": "query", "required": True, "schema": {}}),
    "GET /v1/best/{key}: parameter policy: 'loose' is not taken any more": (
        lambda d: parameter(d, "policy")["schema"]["enum"].remove("loose")
    ),
}


def at(document, *names):
    for name in names:
        document = document[name]
    return document


def schema(document, name):
    return at(document, "components", "schemas", name)


def parameter(document, name):
    return next(p for p in at(document, *BEST, "parameters") if p["name"] == name)


def remove_parameter(document):
    at(document, *BEST, "parameters").remove(parameter(document, "device"))


def test_a_breaking_change_is_named(document):
    """Whatever a client relies on is missed when it is gone."""
    for message in CHANGES:
        changed = deepcopy(document)
        CHANGES[message](changed)
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
