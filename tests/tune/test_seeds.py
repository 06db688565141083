"""A search begins with what neighbours did best."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feinsum import array, canonicalize, einsum
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.transforms import find_applicable_transforms, list_configurations
from feinsum.transforms.library import PACKED_CONTRACTION
from feinsum.tuning import tune_einsum
from feinsum.tuning.search import find_neighbours
from tests.db.factories import (
    make_device,
    make_environment,
    make_measurement,
    make_processor,
)
from tests.db.factories import make_record as any_record
from tests.tune.odd_transforms import odd_einsum, odd_spec

pytestmark = pytest.mark.filterwarnings(  # Loopy's own use of islpy
    "ignore:.*with implicit conversion:DeprecationWarning"
)


def matvec(n_columns, dtype="float64"):
    return canonicalize(
        einsum(
            "ij,j->i",
            array("A", ("N", n_columns), dtype),
            array("x", n_columns, dtype),
        )
    )


HERE = make_environment(make_device(processor=make_processor("zen5")))
TARGET = matvec(20)
SPECS = [
    spec
    for transform in find_applicable_transforms(TARGET.einsum)
    for spec in list_configurations(transform, TARGET.einsum)
]


def fact(form, spec, environment=HERE, median_s=1e-3):
    measurement = replace(make_measurement(median_s), baseline_s=(1.0,))
    return replace(
        any_record(),
        workload=form.key,
        workload_text=form.text,
        spec=spec,
        environment=environment,
        measurement=measurement,
    )


def seeds(*facts, limit=4):
    store = InMemoryStore()
    for record in facts:
        store.add(record)
    return find_neighbours(store, TARGET.text, HERE, SPECS, limit)


def test_the_nearest_come_first():
    """This einsum, then other extents, then other dtypes; this device before others."""
    there = make_environment(make_device(1, make_processor("zen5")))
    facts = [
        fact(matvec(20, "float32"), SPECS[3]),
        fact(matvec(30), SPECS[2], there),
        fact(TARGET, SPECS[0], there),
        fact(matvec(30), SPECS[1]),
    ]
    assert seeds(*facts) == SPECS[:4]


def test_nearer_devices_come_first():
    """Of one einsum: by platform, then by microarchitecture, whatever the speed."""
    near = make_device(1, make_processor("zen5"))
    other = make_device(1, make_processor("zen4"))
    far = replace(near, platform="another")
    facts = [
        fact(TARGET, SPECS[k], make_environment(device), (3 - k) * 1e-3)
        for k, device in enumerate((near, other, far))
    ]
    assert seeds(*reversed(facts)) == SPECS[:3]


def test_every_neighbour_has_a_turn():
    """The best of each neighbour comes before the second best of any; four in all."""
    one = [fact(TARGET, SPECS[k], median_s=(k + 1) * 1e-3) for k in range(4)]
    two = [fact(matvec(30), SPECS[k], median_s=(k - 3) * 1e-3) for k in range(4, 7)]
    assert seeds(*one, *two) == [SPECS[0], SPECS[4], SPECS[1], SPECS[5]]
    assert len(seeds(*one, *two, limit=99)) == 7


def test_a_recipe_is_proposed_once():
    """However many neighbours had it."""
    assert seeds(*(fact(matvec(n), SPECS[0]) for n in (20, 30, 40))) == [SPECS[0]]


def test_what_does_not_fit_is_left_out():
    """Other structures, recipes outside of the space, and what was no faster."""
    outer = canonicalize(einsum("i,j->ij", array("x", "N"), array("y", 20)))
    unknown = TransformSpec("unknown", 1, {})
    slow = fact(matvec(30), SPECS[1], median_s=2.0)
    assert seeds(fact(outer, SPECS[0]), fact(matvec(30), unknown), slow) == []


def test_a_recipe_of_an_older_version_is_taken_up_in_the_newest():
    """If its parameters fit there."""
    matrices = canonicalize(
        einsum("ij,jk->ik", array("A", (96, 96)), array("B", (96, 96)))
    )
    fitting = [*list_configurations(PACKED_CONTRACTION, matrices.einsum)]
    wanted = fitting[7]
    store = InMemoryStore()
    store.add(fact(matrices, replace(wanted, version=wanted.version - 1)))
    assert find_neighbours(store, matrices.text, HERE, fitting) == [wanted]


@pytest.mark.usefixtures("trials_here")
def test_a_tuning_begins_with_what_is_asked_for_and_then_with_neighbours(registered):
    """``first`` comes ahead of the neighbours, these ahead of the search's own."""
    registered("odd_double", "odd_right")
    store = InMemoryStore()
    store.add(fact(canonicalize(odd_einsum("N")), odd_spec("odd_double", 8)))
    wanted = odd_spec("odd_right", 8)
    report = tune_einsum(odd_einsum(50), database=store, first=[wanted], n_trials=2)
    assert [t.spec for t in report.trials] == [wanted, odd_spec("odd_double", 8)]
