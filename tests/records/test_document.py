"""Records as JSON: they come back equal, and nothing else is accepted."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from hashlib import sha256
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import InvalidRecordError
from feinsum.records import (
    KINDS,
    Device,
    DevicePeaks,
    Environment,
    Fleet,
    TuningRecord,
    compute_content_id,
    from_json,
    to_json,
)
from tests.db.factories import make_peaks, make_plan_record, make_trial
from tests.strategies import CPU, HERE, PROCESSOR, counts, make_record, tuning_records

RECORD = make_record()


@counts(25, 5000)
@given(tuning_records)
def test_round_trip(record):
    """JSON leads back to an equal record with the same content id."""
    text = to_json(record)
    again = from_json(TuningRecord, text)
    assert again == record
    assert again.id == record.id
    assert to_json(again) == text


@pytest.mark.parametrize(
    "document",
    [make_peaks(), make_plan_record(), make_trial(), RECORD, HERE, PROCESSOR],
    ids=lambda document: type(document).__name__,
)
def test_documents_are_constant(document):
    """All their parts: they are hashable, and one that is read has an equal hash."""
    again = from_json(type(document), to_json(document))
    assert (again, hash(again)) == (document, hash(document))


def test_a_number_is_written_in_one_way():
    """The id does not depend on whether a time was an int, a float or numpy's."""
    for number in (1, 1.0, np.float64(1)):
        record = make_record(samples_s=(number,))
        assert record.id == make_record(samples_s=(1.0,)).id
        assert from_json(TuningRecord, to_json(record)) == record


def test_order_of_mappings_does_not_matter():
    """Mappings are unordered: in equality and in the content id."""
    software = {"loopy": "1", "pyopencl": "2"}
    backwards = dict(reversed(software.items()))
    a, b = replace(HERE, software=software), replace(HERE, software=backwards)
    assert a == b
    assert a.id == b.id


def test_no_document_can_be_changed():
    """Its id is that of its content for ever."""
    for kind in (*(kind.cls for kind in KINDS.values()), Environment, Fleet):
        document = object.__new__(kind)
        with pytest.raises(FrozenInstanceError):
            document.id = "another"


def test_a_record_cannot_be_changed():
    """Neither its fields nor the mappings that it was made from."""
    software = {"loopy": "1"}
    environment = replace(HERE, software=software)
    software["loopy"] = "2"
    assert environment.software == {"loopy": "1"}
    with pytest.raises(FrozenInstanceError):
        environment.driver_version = "2"
    with pytest.raises(AttributeError, match="immutable"):
        environment.software["loopy"] = "2"


def test_every_part_counts():
    """Another workload, time, provenance, sample, spec, driver or processor: another
    id.
    """
    for other in (
        replace(RECORD, workload="another"),
        replace(RECORD, recorded_at="later"),
        replace(RECORD, provenance={"host": "there"}),
        make_record(samples_s=(0.25,)),
        make_record(spec="rowwise@2(lanes=8)"),
        make_record(environment=replace(HERE, driver_version="driver 2")),
        make_record(environment=replace(HERE, device=replace(CPU, processor=None))),
        make_record(
            environment=replace(
                HERE,
                device=replace(CPU, processor=replace(PROCESSOR, features=("avx2",))),
            )
        ),
    ):
        assert other.id != RECORD.id


def test_id_is_a_digest_of_the_text():
    """The id of a document is its content id: 64 hexadecimal digits."""
    assert RECORD.id == compute_content_id(RECORD) != compute_content_id(HERE)
    assert len(RECORD.id) == len(f"{int(RECORD.id, 16):064x}") == 64


FORMER = Device("Portable OpenCL", "Some CPU", "Maker", "cpu", "x86_64", 8)
"""A device as it was recorded before the field ``processor`` existed."""


def test_a_device_without_a_processor_is_written_as_before():
    """Its document does not name one, so ids of what was recorded before stay."""
    assert to_json(FORMER) == (
        '{"architecture":"x86_64","compute_units":8,"kind":"cpu","name":"Some CPU",'
        '"platform":"Portable OpenCL","vendor":"Maker"}'
    )
    assert FORMER.id.startswith("52fb607de8c3")
    peaks = DevicePeaks(FORMER, 1.0, {}, "2025-01-01T00:00:00+00:00")
    for document in (replace(HERE, device=FORMER), peaks):
        assert "processor" not in to_json(document)
        assert from_json(type(document), to_json(document)) == document


def test_shipped_facts_are_written_as_before():
    """Each line is its fact's text, and its digest is the fact's id."""
    for path in (files("feinsum.db") / "packaged").iterdir():
        for line in path.read_text("utf-8").splitlines():
            record = from_json(TuningRecord, line)
            assert ("processor" in line) == (
                record.environment.device.processor is not None
            )
            assert to_json(record) == line
            assert record.id == sha256(line.encode()).hexdigest()


MISSING = object()


def _changed(path: str, value: object) -> str:
    """The JSON of a record with one place set to ``value``, or taken out."""
    document = json.loads(to_json(RECORD))
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
    place: Any = document
    for key in parents:
        place = place[key]
    if value is MISSING:
        del place[last]
    else:
        place[last] = value
    return json.dumps(document)


def test_wrong_fields_are_refused():
    """The error names the field by its path and says what was expected."""
    for path, value, message in (
        ("unknown", 1, "Unexpected keyword argument"),
        ("measurement.unknown", 1, "Unexpected keyword argument"),
        ("environment.device.unknown", 1, "Unexpected keyword argument"),
        ("workload", MISSING, "Field required"),
        ("spec.version", MISSING, "Field required"),
        ("measurement.verification.tolerance", MISSING, "Field required"),
        ("workload", 3, "valid string"),
        ("spec.version", "1", "valid integer"),
        ("spec.version", 1.0, "valid integer"),
        ("spec.version", True, "valid integer"),
        ("spec.parameters.lanes", 1.5, "valid integer"),
        ("spec.parameters.lanes", None, "valid integer"),
        ("spec.parameters.lanes", {"a": 1}, "valid integer"),
        ("environment.device.kind", "toaster", "'cpu', 'gpu'"),
        ("environment.device.processor", "zen4", "an object"),
        ("environment.device.processor.unknown", 1, "Unexpected keyword argument"),
        ("environment.device.processor.family", MISSING, "Field required"),
        ("environment.device.processor.model", "17", "valid integer"),
        ("environment.device.processor.features", "avx2", "valid array"),
        ("environment.device.processor.cache_bytes.L2", 0.5, "valid integer"),
        ("environment.policy.rounds", None, "valid integer"),
        ("measurement.sizes.N", 1.5, "valid integer"),
        ("measurement.n_warmup", -1, "greater than or equal to 0"),
        ("measurement.samples_s", [], "at least 1 item"),
        ("measurement.samples_s.0", "1.0", "valid number"),
        ("measurement.samples_s.0", 0.0, "greater than 0"),
        ("measurement.samples_s.0", float("nan"), "finite number"),
        ("measurement.baseline_s.0", float("inf"), "finite number"),
        ("measurement.verification.largest_error", float("nan"), "finite number"),
        ("provenance", [], "an object"),
    ):
        with pytest.raises(InvalidRecordError) as caught:
            from_json(TuningRecord, _changed(path, value))
        assert str(caught.value).startswith("not a valid TuningRecord: ")
        assert path in str(caught.value)
        assert message in str(caught.value)


def test_other_documents_are_refused():
    """What is no JSON object is refused as a whole."""
    for text in ("", "{", "[]", "null", "3", b"\xff", "[" * 10**5):
        with pytest.raises(
            InvalidRecordError, match="not a valid Environment: document: "
        ):
            from_json(Environment, text)


@given(st.text() | st.binary())
def test_any_text_is_refused(text):
    """No text does anything but raise ``InvalidRecordError``."""
    with pytest.raises(InvalidRecordError):
        from_json(TuningRecord, text)


def test_what_json_cannot_hold_is_refused():
    """A record with NaN or an infinity has no JSON and no id."""
    for value in (float("nan"), float("inf")):
        record = make_record(samples_s=(value,))
        with pytest.raises(InvalidRecordError, match="not a valid TuningRecord"):
            to_json(record)
        with pytest.raises(InvalidRecordError):
            _ = record.id
