"""How many documents of each kind, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["counted_kinds"]

WORDS = {
    "record": "records",
    "peaks": "limits of devices",
    "trial": "trials",
    "plan": "plans",
    "retraction": "retractions",
}

RARE = frozenset({"plan", "retraction"})
"""Kinds that are named only if there are any."""


def counted_kinds(numbers: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Names of the kinds of documents, with their numbers.

    >>> [*counted_kinds({"record": 2, "plan": 1})]
    [('records', 2), ('limits of devices', 0), ('trials', 0), ('plans', 1)]
    """
    for kind, word in WORDS.items():
        if numbers.get(kind) or kind not in RARE:
            yield word, numbers.get(kind, 0)
