"""Whatever an operand says of an array survives all that rebuilds operands."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from feinsum import array, canonicalize, einsum
from feinsum.ir import (
    Operand,
    Workload,
    from_text,
    generalize,
    generalize_each,
    to_text,
    with_extents,
)

OTHER = {"dtype": np.dtype("float32"), "storage": "csf"}
"""Another value of every field that is neither the name nor the shape."""
PLAIN = einsum("ij,jk->ik", array("A", (900, 4)), array("B", (4, 9)))


def changed(field):
    """The einsum with another value of a field of its first operand."""
    (first, second), *_ = PLAIN.rows
    return replace(PLAIN, rows=((replace(first, **{field: OTHER[field]}), second),))


def test_every_field_has_another_value_here():
    """Who adds a field says here what else it can be, and the tests below look."""
    assert {*OTHER, "name", "shape"} == {field.name for field in fields(Operand)}


@pytest.mark.parametrize("field", OTHER)
@pytest.mark.parametrize(
    "rebuilt",
    [
        lambda e: from_text(to_text(e)),
        lambda e: generalize(e)[0],
        lambda e: next(generalize_each(e))[0],
        lambda e: with_extents(e, e.extents),
        lambda e: Workload(generalize(e)[0], {"n900": 900}).sized,
        lambda e: canonicalize(e).einsum,
        lambda e: from_text(canonicalize(e).text),
        lambda e: canonicalize(e).relabeling.apply(e),
    ],
    ids=["text", "general", "each", "extents", "known", "form", "read", "relabeled"],
)
def test_no_field_is_lost(field, rebuilt):
    """Whatever rebuilds operands, the one that was changed still says so."""
    values = [getattr(op, field) for op in rebuilt(changed(field)).operands]
    assert values.count(OTHER[field]) == 1


@pytest.mark.parametrize("field", OTHER)
def test_every_field_is_part_of_the_key(field):
    """Facts of one kind of array are none of another."""
    assert canonicalize(changed(field)).key != canonicalize(PLAIN).key
