"""The documentation of primitives and families is complete."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict

from feinsum import array, canonicalize, einsum, sparse_array
from feinsum.transforms import (
    ALL_DEVICES,
    REGISTRY,
    find_applicable_transforms,
    primitives,
)
from tests.transforms.support import EINSUMS

PRIMITIVES = {
    name: function
    for name in primitives.__all__
    if inspect.isfunction(function := getattr(primitives, name))
    and "schedule" in inspect.signature(function).parameters
}


def rewrites(function):
    """The blocks of code after ``Rewrite::``, as they stand between blank lines."""
    text = inspect.getdoc(function)
    found = re.search(
        r"^Rewrite[^:]*::\n\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE
    )
    assert found, f"{function.__name__} has no section Rewrite::"
    return [block for block in re.split(r"\n\s*\n", found[1]) if block.strip()]


def described(function):
    """The names in the section ``Parameters:``."""
    section = inspect.getdoc(function).partition("Parameters:\n")[2]
    return set(re.findall(r"^    (\w+): \S", section, re.MULTILINE))


def test_every_primitive_shows_the_loops_before_and_after():
    """A docstring has a section Rewrite:: with the nest before and after."""
    assert {"split", "merge_operands", "stage_operand"} <= set(PRIMITIVES)
    for name, function in PRIMITIVES.items():
        assert len(rewrites(function)) >= 2, name


OF_A_TREE = canonicalize(
    einsum("ij,jk->ik", sparse_array("T", (9, 9)), array("B", (9, 40)))
).einsum
LONG_SUM = canonicalize(einsum("ij->", array("A", (300, 301)))).einsum
NEWEST = [REGISTRY[version] for version in dict(sorted(REGISTRY)).items()]


def test_every_family_is_documented():
    """A family shows its rewriting and describes every parameter of its space."""
    names = defaultdict(set)
    for e in (*EINSUMS.values(), LONG_SUM, OF_A_TREE):
        for family in {
            t for kind in ALL_DEVICES for t in find_applicable_transforms(e, kind)
        }:
            names[family.name].update(family.get_space(e))
    for family in NEWEST:
        assert len(rewrites(family.apply)) >= 2
        assert family.summary
        assert described(family.apply) == names[family.name], family.name
