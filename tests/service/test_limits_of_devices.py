"""Measured limits are facts: attributed, ranked by trust, and retractable."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from feinsum.records import to_json
from tests.db.factories import make_device, make_peaks
from tests.service.conftest import key_for, send, store_of

PATH = f"/v1/peaks/{make_device().id}"


@pytest.fixture
def location(any_location):
    return any_location


@pytest.fixture
def careful(serve):
    return serve(anonymous_record=False)


def sent(client, peaks, headers):
    answer = send(client, to_json(peaks), "/v1/peaks", **headers)
    assert answer.status_code in (200, 201), answer.text
    return peaks


def latest(client):
    answer = client.get(PATH)
    return answer.json() if answer.status_code == 200 else None


def document(peaks):
    return json.loads(to_json(peaks))


def poison(n=0):
    ahead = datetime.now(UTC) + timedelta(minutes=9, seconds=-n)
    slow = {"float32": 1e6, "float64": 1e6}
    return replace(
        make_peaks(measured_at=ahead.isoformat(timespec="seconds")),
        bandwidth_bytes_per_s=1e6,
        operations_per_s=slow,
    )


def test_limits_of_the_untrusted_replace_none_of_the_trusted(careful):
    """However late they say they were measured, and however many they are."""
    ann = key_for(careful, "record", "ann", is_trusted=True)
    eve = key_for(careful, "record", "eve")
    honest = sent(careful, make_peaks(), ann)
    for n in range(5):
        sent(careful, poison(n), eve)
    assert latest(careful) == document(honest)
    newer = sent(careful, make_peaks(measured_at="2026-02-01T00:00:00"), ann)
    assert latest(careful) == document(newer)


def test_limits_of_the_untrusted_count_where_there_are_no_others(careful):
    """They do until somebody trusted sends some, the owner of the database too; who
    sent them is known by their id.
    """
    first = sent(careful, make_peaks(), key_for(careful, "record", "eve"))
    assert latest(careful) == document(first)
    trust = careful.get(f"/v1/facts/{first.id}/trust").json()
    assert [one["recorder"] for one in trust["recordings"]] == ["eve"]
    older = make_peaks(measured_at="2024-01-01T00:00:00")
    store_of(careful).add(older)
    assert latest(careful) == document(older)


def test_limits_that_a_trusted_sender_repeats_are_trusted(careful):
    """Whoever sent them first."""
    both = sent(careful, make_peaks(), key_for(careful, "record", "eve"))
    sent(
        careful,
        make_peaks(measured_at="2026-01-01T00:00:00"),
        key_for(careful, "record", "eve"),
    )
    assert latest(careful) != document(both)
    sent(careful, both, key_for(careful, "record", "ann", is_trusted=True))
    assert latest(careful) == document(both)


def test_limits_are_retracted_as_facts_are(careful):
    """One command removes what one sender sent; it is listed before."""
    ann = key_for(careful, "record", "ann")
    honest = sent(careful, make_peaks(), ann)
    odd = sent(careful, poison(), key_for(careful, "record", "eve"))
    admin = key_for(careful, "admin", "op")

    def retract(is_dry_run, **asked):
        body = asked | {"reason": "wrong", "is_dry_run": is_dry_run}
        return careful.post("/v1/facts:retract", json=body, headers=admin).json()

    ways = {"ids": [odd.id[:12]]}, {"ids": [odd.id]}, {"recorders": ["eve"]}
    for asked in ways:
        dry = retract(True, **asked)
        assert [one["id"] for one in dry["peaks"]] == [odd.id]
        assert (dry["n_facts"], dry["unknown"]) == (1, [])
        assert latest(careful) == document(odd)
    retract(False, **asked)
    assert latest(careful) == document(honest)
    sent(careful, odd, ann)
    assert latest(careful) == document(honest)
