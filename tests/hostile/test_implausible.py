"""What nobody can have measured is refused by its code, wherever it comes in."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from feinsum.db import open_store
from feinsum.db.exchange.files import read_file, write_file
from feinsum.db.exchange.merging import import_entries, merge
from feinsum.records import (
    CODES,
    InMemoryStore,
    TuningRecord,
    compute_content_id,
    from_json,
    to_json,
)
from tests.db.factories import make_peaks
from tests.hostile.world import HONEST

FACT: dict[str, Any] = json.loads(to_json(HONEST[0]))

AHEAD = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")

ODD: list[tuple[str, str, object]] = [
    ("measurement.samples_s", "below-resolution", [1e-30, 1e-30, 1e-30]),
    ("measurement.samples_s", "faster-than-possible", [1e-8, 1e-8, 1e-8]),
    ("measurement.samples_s", "slower-than-possible", [1e-3, 1e-3, 1e300]),
    ("measurement.baseline_s", "slower-than-possible", [1e300]),
    ("measurement.baseline_s", "faster-than-possible", [1e-8]),
    ("measurement.samples_s", "too-few-samples", [1e-3]),
    ("measurement.timer", "timer", "sundial"),
    ("measurement.operations", "dtype", {"O": 1}),
    ("measurement.sizes", "sizes", {"m": 1000}),
    ("measurement.sizes", "sizes", {"n": -1000}),
    ("measurement.verification.largest_error", "error-above-tolerance", 1.0),
    ("measurement.verification.largest_error", "error-above-tolerance", -1.0),
    ("measurement.verification.tolerance", "tolerance", -1e-9),
    ("measurement.verification.tolerance", "tolerance", 1e9),
    ("measurement.verification.sizes", "not-verified", []),
    ("environment.device.compute_units", "compute-units", -2),
    ("environment.device.name", "text-length", "x" * 300),
    ("environment.device.vendor", "control-character", "a\0b"),
    ("environment.driver_version", "text-length", "x" * 1100),
    ("spec.parameters", "integer-range", {"depth": 10**3000}),
    ("provenance", "document-size", {f"{n}": "x" * 1000 for n in range(70)}),
    ("workload_text", "key-of-another-text", "a -> a | A0[n]:<f8 | A0"),
    ("workload", "key-of-another-text", "mine-1"),
    ("recorded_at", "future", AHEAD),
    ("recorded_at", "future", "9999-01-01T00:00:00+00:00"),
    ("recorded_at", "time", "yesterday"),
]


def changed(path: str, value: object) -> str:
    """The document of an honest fact with another value somewhere."""
    document = json.loads(json.dumps(FACT))
    *parents, last = path.split(".")
    inner = document
    for name in parents:
        inner = inner[name]
    inner[last] = value
    if path == "measurement.samples_s" and value == [1e-8] * 3:
        document["measurement"]["sizes"] = {"n": 10**9}
    if path == "measurement.baseline_s" and value == [1e-8]:
        document["measurement"]["sizes"] = {"n": 10**9}
    return json.dumps(document)


def test_the_service_refuses_it(lasting):
    """It is a 422 whose findings have the code, what was given and expected; what
    honest clients are served stays.
    """
    before = lasting.served()
    for path, code, value in ODD:
        status, problem = lasting.attacker.send(changed(path, value))
        assert (status, problem["code"]) == (422, "implausible"), path
        found = {finding["code"]: finding for finding in problem["findings"]}
        assert found[code]["given"]
        assert found[code]["expected"] == CODES[code]
    assert lasting.served() == before


def test_merge_and_import_refuse_it(tmp_path):
    """It is left out by its code, and honest facts beside it are taken."""
    codes = {from_json(TuningRecord, changed(p, v)): code for p, code, v in ODD}
    source = InMemoryStore()
    source.add_all([*codes, HONEST[1]])
    lines = tmp_path / "facts.jsonl"
    write_file(source.documents("record"), lines)
    for read in (
        lambda target, on_bad: merge(target, source, on_bad=on_bad),
        lambda target, on_bad: import_entries(target, read_file(lines), on_bad),
    ):
        target, left_out = InMemoryStore(), []
        read(target, left_out.append)
        assert list(target.records()) == [HONEST[1]]
        in_order = sorted(codes, key=lambda record: record.id)
        for odd, bad in zip(in_order, left_out, strict=True):
            assert bad.problem.code == "implausible"
            assert codes[odd] in [found[0] for found in bad.problem.findings]


def test_a_name_that_is_twice_is_refused(lasting, tmp_path):
    """Of two values of one name none is taken, by the service and from a file."""
    text = to_json(HONEST[0])
    twice = text.replace('"timer":"wall"', '"timer":"wall","timer":"wall"')
    assert twice != text
    status, problem = lasting.attacker.send(twice)
    assert (status, problem["code"]) == (422, "invalid-record")
    assert "repeated" in problem["detail"]
    lines = tmp_path / "facts.jsonl"
    write_file([HONEST[0]], lines)
    lines.write_text(lines.read_text().replace(text, twice))
    left_out: list[object] = []
    import_entries(InMemoryStore(), read_file(lines), left_out.append)
    assert "repeated" in str(*left_out)


def test_limits_that_no_device_has_are_refused(lasting):
    """Limits of a device are judged as facts are; the honest ones stay the latest."""
    for changes, code in (
        ({"bandwidth_bytes_per_s": 1e-300}, "rate"),
        ({"bandwidth_bytes_per_s": -5.0}, "rate"),
        ({"bandwidth_bytes_per_s": 1e300}, "rate"),
        ({"operations_per_s": {"<f8": 0.0}}, "rate"),
        ({"operations_per_s": {"V7": 1e9}}, "dtype"),
        ({"measured_at": "9999-01-01T00:00:00+00:00"}, "future"),
        ({"measured_at": "never"}, "time"),
    ):
        honest = make_peaks(HONEST[0].environment.device)
        assert lasting.attacker.send(to_json(honest), path="/v1/peaks")[0] in (200, 201)
        odd = to_json(replace(honest, **changes))
        status, problem = lasting.attacker.send(odd, path="/v1/peaks")
        assert (status, problem["code"]) == (422, "implausible")
        assert code in [finding["code"] for finding in problem["findings"]]
        _, latest = lasting.attacker.get(f"/v1/peaks/{honest.device.id}")
        assert latest == json.loads(to_json(honest))


def test_odd_limits_that_are_stored_are_not_the_latest(tmp_path):
    """What an older version took is passed over, and stays in the database."""
    honest = make_peaks()
    odd = [
        replace(honest, bandwidth_bytes_per_s=1e-300, measured_at=at)
        for at in ("9999-01-01T00:00:00+00:00", "2999-W01-1")
    ]
    with open_store(tmp_path / "facts.sqlite") as store:
        store.add_all([honest, *odd])
        assert store.peaks(honest.device.id) == honest
        assert set(store.ids("peaks")) == set(map(compute_content_id, (honest, *odd)))
