"""T4: what is written has the form that other tools read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from feinsum.canonical import WorkloadKey
from feinsum.db.exchange.kernel_tuner import make_t4_document, write_t4
from feinsum.records import Device, from_json
from tests.db.factories import (
    make_device,
    make_environment,
    make_peaks,
    make_processor,
    make_record,
    make_trial,
)

WORDS = ["timeout", "compile", "runtime", "correctness", "constraints", "correct"]
NUMBER, TEXT, LIST, OBJECT = (
    {"type": t} for t in ("number", "string", "array", "object")
)
MEASUREMENT = {
    "type": "object",
    "properties": {"name": TEXT, "unit": TEXT, "value": {"type": ["number", "string"]}},
    "required": ["name", "unit", "value"],
}
RESULT = {
    "type": "object",
    "properties": {
        "timestamp": TEXT,
        "configuration": OBJECT,
        "objectives": {"type": "array", "items": TEXT},
        "times": {
            "type": "object",
            "properties": {"runtimes": {"type": "array", "items": NUMBER}},
        },
        "invalidity": {"enum": WORDS},
        "correctness": NUMBER,
        "measurements": {"type": "array", "items": MEASUREMENT},
    },
    "required": ["configuration", "times", "invalidity", "correctness"],
}
METADATA = {
    "type": "object",
    "properties": {
        "hardware": {
            "type": "object",
            "properties": {"hardware_description": LIST, "operating_system": TEXT},
        },
        "environment": {
            "type": "object",
            "properties": {"device_query": OBJECT, "requirements": LIST},
        },
    },
}
T4 = Draft202012Validator(
    {
        "type": "object",
        "properties": {
            "schema_version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
            "metadata": METADATA,
            "results": {"type": "array", "items": RESULT},
        },
        "required": ["schema_version", "metadata", "results"],
    }
)
"""The rules of T4's schemas "results" and "metadata" 1.0.0, in one."""


def test_a_fact_is_a_correct_result():
    """With its recipe, all samples in milliseconds, and the objective."""
    document = make_t4_document([make_record(1)])
    T4.validate(document)
    (result,) = document["results"]
    assert result["configuration"] == {
        "@transform": "rowwise@1",
        "lanes": 8,
        "n": 1,
        "order": ["i", "j"],
    }
    assert result["times"]["runtimes"] == pytest.approx([2, 1.8, 2.2])
    assert (result["invalidity"], result["correctness"]) == ("correct", 1)
    assert {"name": "time", "value": pytest.approx(2), "unit": "ms"} in result[
        "measurements"
    ]
    assert result["objectives"] == ["time"]


def test_the_hardware_is_the_device_with_its_processor():
    """As it is written in the fact; without one where none was recorded."""
    device = make_device(processor=make_processor("zen5"))
    for one in (device, make_device()):
        document = make_t4_document([make_record(environment=make_environment(one))])
        T4.validate(document)
        (hardware,) = document["metadata"]["hardware"]["hardware_description"]
        assert from_json(Device, json.dumps(hardware)) == one
        assert ("processor" in hardware) == (one is device)


def test_a_trial_is_a_result_good_or_bad():
    """Its status is one of T4's words."""
    for status, word in (
        ("ok", "correct"),
        ("trial-timeout", "timeout"),
        ("build-failed", "compile"),
        ("trial-crashed", "runtime"),
        ("wrong-result", "correctness"),
        ("transform-failed", "constraints"),
        ("a code of another version", "runtime"),
    ):
        document = make_t4_document([make_trial(status=status)])
        T4.validate(document)
        (result,) = document["results"]
        is_ok = word == "correct"
        assert (result["invalidity"], result["correctness"]) == (word, is_ok)
        assert len(result["times"]["runtimes"]) == is_ok


def contents(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


def test_a_file_is_of_one_workload_and_environment(tmp_path):
    """Named after both; limits of devices have no place in it."""
    elsewhere, other = make_environment(driver="7.0"), WorkloadKey("another")
    records = [make_record(0), make_record(1), make_record(0, environment=elsewhere)]
    documents = [*records, make_record(0, workload=other), make_trial(), make_peaks()]
    counts = write_t4(documents, tmp_path / "t4")
    assert counts == {"record": 4, "trial": 1}
    found = contents(tmp_path / "t4")
    assert sorted(len(document["results"]) for document in found.values()) == [1, 1, 3]
    for name, document in found.items():
        T4.validate(document)
        assert name.startswith(document["metadata"]["workload"])


def test_no_key_leads_out_of_the_folder(tmp_path):
    """A key that is no name of a file gets its digest as a name."""
    keys = "../../escaped", "/etc/passwd", ".", "k" * 400, "é\n"
    write_t4([make_record(workload=WorkloadKey(k)) for k in keys], tmp_path / "a/t4")
    names = contents(tmp_path / "a" / "t4")
    assert [len(name) for name in names] == [len(f"{'0' * 40}-{'0' * 12}.json")] * 5
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_order_of_documents_does_not_matter(tmp_path):
    """The same facts are the same files."""
    documents = [make_record(n) for n in range(4)]
    write_t4(documents, tmp_path / "one")
    write_t4(reversed(documents), tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
