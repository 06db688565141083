"""Trials as documents: a failed one has no time, and a passed one has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feinsum.errors import InvalidRecordError
from feinsum.records import MESSAGE_LENGTH, Trial, from_json, to_json
from tests.db.factories import make_trial

FAILED = make_trial(status="build-failed", message="é\n'quoted' \x00")


def test_only_what_passed_has_a_time():
    """A trial that passed has both times, any other has none."""
    for change in ({"median_s": None}, {"ratio": None}, {"status": "wrong-result"}):
        with pytest.raises(InvalidRecordError, match="expected both if it is ok"):
            replace(make_trial(), **change)


def test_a_failed_trial_costs_more_than_any_other():
    """So that it is never the best."""
    assert make_trial().cost == make_trial().ratio < FAILED.cost == float("inf")


def test_a_bad_document_is_refused():
    """Times are positive, a message is of limited length, and the law holds."""
    for text in (
        to_json(make_trial()).replace('"ratio":0.1', '"ratio":0'),
        to_json(make_trial()).replace('"median_s":0.001', '"median_s":-1'),
        to_json(make_trial()).replace('"message":""', f'"message":"{"x" * 2001}"'),
        to_json(FAILED).replace('"ratio":null', '"ratio":0.5'),
    ):
        assert MESSAGE_LENGTH == 2000
        with pytest.raises(InvalidRecordError, match="not a valid Trial"):
            from_json(Trial, text)
