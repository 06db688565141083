"""Elements that the collectives in a text of HLO move."""

from __future__ import annotations

import re
from math import prod

__all__ = ["moved_in"]

COLLECTIVE = re.compile(
    r"= (?P<shapes>\(?\w+\[.*?) (?P<name>all-reduce|reduce-scatter|all-gather|"
    r"all-to-all|collective-permute)(?:-start)?\((?P<rest>.*)"
)
SHAPE = re.compile(r"[a-z]+\d*\[([\d,]*)\]")
LISTED = re.compile(r"replica_groups=\{\{(.*?)\}\}")
IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
PAIRS = re.compile(r"source_target_pairs=\{\{(.*?)\}\}")


def moved_in(text: str, n_devices: int) -> int:
    """Elements that all devices receive.

    An all-reduce is counted as a reduce-scatter and an all-gather.

    >>> moved_in("%a = f64[8,4]{1,0} all-gather(%p), replica_groups=[2,4]<=[8]", 8)
    192
    >>> moved_in("%a = f64[6]{0} all-reduce(%p), replica_groups={{0,1},{2,3}}", 4)
    24
    """
    return sum(_moved(*match.groups(), n_devices) for match in _found(text))


def _found(text: str) -> list[re.Match[str]]:
    return [match for line in text.splitlines() if (match := COLLECTIVE.search(line))]


def _moved(shapes: str, name: str, rest: str, n_devices: int) -> int:
    n = sum(prod(map(int, filter(None, s.split(",")))) for s in SHAPE.findall(shapes))
    if name == "collective-permute":
        pairs = PAIRS.search(rest)
        listed = pairs.group(1).split("},{") if pairs else []
        return n * sum(len(set(pair.split(","))) == 2 for pair in listed)
    n_groups, size = _groups(rest, n_devices)
    per_group = {
        "all-reduce": 2 * (size - 1) * n,
        "reduce-scatter": size * (size - 1) * n,
        "all-gather": (size - 1) * n,
        "all-to-all": (size - 1) * n,
    }
    return n_groups * per_group[name]


def _groups(rest: str, n_devices: int) -> tuple[int, int]:
    """How many groups of how many devices."""
    if iota := IOTA.search(rest):
        return int(iota.group(1)), int(iota.group(2))
    if listed := LISTED.search(rest):
        groups = listed.group(1).split("},{")
        return len(groups), len(groups[0].split(","))
    return 1, n_devices
