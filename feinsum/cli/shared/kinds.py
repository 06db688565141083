"""Format numbers of documents by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WORDS = {
    "record": "records",
    "peaks": "limits of devices",
    "trial": "trials",
    "plan": "plans",
    "retraction": "retractions",
}

SINGULAR = {
    "records": "record",
    "limits of devices": "device's limits",
    "trials": "trial",
    "plans": "plan",
    "retractions": "retraction",
}

RARE = frozenset({"plan", "retraction"})
"""Kinds that are named only if there are any."""


def list_counts(numbers: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the names of the kinds of documents, with their numbers.

    >>> [*list_counts({"record": 2, "plan": 1})]
    [('records', 2), ('limits of devices', 0), ('trials', 0), ('plans', 1)]
    """
    for kind, word in WORDS.items():
        if numbers.get(kind) or kind not in RARE:
            yield word, numbers.get(kind, 0)


def format_counts(numbers: Mapping[Any, int]) -> str:
    """Format how many documents there are of each kind.

    >>> format_counts({"record": 2, "trial": 1})
    '2 records, 0 limits of devices, 1 trial'
    """
    return ", ".join(
        f"{number} {SINGULAR.get(word, word) if number == 1 else word}"
        for word, number in list_counts(numbers)
    )
