"""Facts about MTTKRP, whose profile and recipe a test chooses."""

from __future__ import annotations

from dataclasses import replace

from feinsum import array, canonicalize, einsum, sparse_array
from feinsum.ir import generalize
from feinsum.measure import count_footprint_bytes, count_operations, open_device
from feinsum.records import TransformSpec, TuningRecord
from tests.db.factories import make_record

__all__ = ["PROFILE", "SHAPE", "SPECS", "mttkrp", "mttkrp_record"]

SHAPE = (40, 30, 20)
PROFILE = (38, 300, 2000)
RANK = 8

_USUAL = "sparse_nest@2(lane='b', lanes={}, nest='{}', threads='{}', tile=0)"
SPECS = {
    "factorized": TransformSpec.parse(
        _USUAL.format(4, "1 2, 0 3 | a c d b, a c b", "chunks")
    ),
    "in short vectors": TransformSpec.parse(
        _USUAL.format(2, "1 2, 0 3 | a c d b, a c b", "none")
    ),
    "unfactorized": TransformSpec.parse(
        _USUAL.format(2, "1 0, 3 2 | a c d b, a c d b", "none")
    ),
}
"""Recipes in the names of the canonical einsum."""


def mttkrp():
    """The einsum with the extents of :data:`SHAPE`."""
    T = sparse_array("T", SHAPE)
    B, C = array("B", (SHAPE[1], RANK)), array("C", (SHAPE[2], RANK))
    return einsum("ijk,ja,ka->ia", T, B, C)


def mttkrp_record(
    recipe: str, number: int = 0, profile: tuple[int, ...] = PROFILE
) -> TuningRecord:
    """A fact on the host, of a kernel twice as fast as the untransformed one."""
    form = canonicalize(generalize(mttkrp())[0])
    names = {x.name: n for x, n in zip(form.einsum.operands[1].shape, SHAPE,
             strict=True)}  # fmt: skip
    sizes = names | {f"nodes.{level}": n for level, n in enumerate(profile)}
    record = make_record(number, workload=form.key)
    verified = replace(record.measurement.verification, sizes=(sizes,))
    measured = replace(
        record.measurement,
        samples_s=(1e-3,) * 5,
        baseline_s=(2e-3,) * 5,
        timer="wall",
        sizes=sizes,
        operations=count_operations(form.einsum, sizes),
        footprint_bytes=count_footprint_bytes(form.einsum, sizes),
        verification=verified,
    )
    return replace(
        record,
        workload_text=form.text,
        environment=open_device("host").environment({}),
        spec=SPECS[recipe],
        measurement=measured,
    )
