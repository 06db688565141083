"""Families: whatever they offer for an einsum computes what numpy computes."""

from __future__ import annotations

from dataclasses import replace

import loopy as lp
import pytest
from constantdict import constantdict
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import TransformError
from feinsum.ir import SizeParam
from feinsum.machine import MachineModel
from feinsum.records import TransformSpec
from feinsum.transforms import (
    Transform,
    find_applicable_transforms,
    find_transform,
    list_configurations,
)
from feinsum.transforms.cost import rank_recipes
from feinsum.transforms.library import PACKED_CONTRACTION
from tests.cpus import CPUS
from tests.portions import spread
from tests.strategies import SIZES, counts, sketches
from tests.transforms.support import (
    CONTRACTIONS,
    EINSUMS,
    LOOPY_WARNINGS,
    OPERATORS,
    OTHERS,
    Case,
    generated,
    ragged_sizes,
    recipes,
    sampled,
    with_literals,
)

pytestmark = LOOPY_WARNINGS

SMALL = (1, 5)
ANY_EXTENT = ("rowwise", "generic")
"""Families without vectors, which take an index of a single value."""
DTYPES = ("<f8", "<f8", "<f4", "<c16", "<i8", "<i2", "|b1")
IN_EVERY_RUN = ["face mass of three", "two summed indices"]
"""Einsums with a second, random configuration in every run."""
ONLY_IN_LONG_RUNS = {
    "divergence of three",
    "face mass of three",
    "mass of three",
    "in single precision",
    "three output indices",
    "times its transpose",
    "two rows",
}
"""Einsums that others in the table resemble."""


def assert_right(name: str, spec: TransformSpec, cpu: str | None = None) -> None:
    e = EINSUMS[name]
    case = generated(e)
    case.assert_right(case.apply(spec), ragged_sizes(e), cpu)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("name", "spec"),
    spread(
        (
            (name, spec)
            for name, spec in recipes(EINSUMS, 0)
            if name not in ONLY_IN_LONG_RUNS
        ),
        12,
    ),
)
def test_the_first_configuration_is_right(name, spec, cpu):
    """The recommended recipe is right at sizes that no tile divides."""
    assert_right(name, spec, cpu)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        (name, spec)
        for name in IN_EVERY_RUN
        for transform in find_applicable_transforms(EINSUMS[name])
        if transform.name != "rowwise"
        for spec in sampled(EINSUMS[name], transform, 1)[1:]
    ],
)
def test_a_random_configuration_is_right(name, spec):
    """So is a random one."""
    assert_right(name, spec)


def test_the_best_candidate_is_right():
    """So is what predictions choose for vectors of 64 bytes."""
    e = EINSUMS["matrix product"]
    machine = MachineModel(vector_bytes=64, fma_bytes=128)
    spec = rank_recipes(e, {}, [PACKED_CONTRACTION], machine)[0].spec
    assert spec.parameters["lanes"] * e.operands[0].dtype.itemsize == 64
    assert_right("matrix product", spec)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "transform"),
    [
        (name, one)
        for name, e in EINSUMS.items()
        for one in find_applicable_transforms(e)
    ],
)
def test_many_configurations_are_right(name, transform):
    """And so are a dozen."""
    for spec in sampled(EINSUMS[name], transform, 12):
        assert_right(name, spec)


def _small(name: str, size: int) -> dict[str, int]:
    """Values of the size parameters of an einsum: ``size``, and others."""
    values = (size, *OTHERS)
    return {x.name: n for x, n in zip(EINSUMS[name].size_params, values, strict=False)}


def assert_right_if_it_fits(
    case: Case, transform: Transform, spec: TransformSpec
) -> None:
    """Right, or refused as too short as the index of the lanes has a single value."""
    lanes = spec.parameters.get("vector", spec.parameters.get("element"))
    try:
        transformed = transform.apply(case.t_unit, case.nest, spec.parameters)
    except TransformError as error:
        is_single = case.nest.extent(lanes) == 1 and spec.name not in ANY_EXTENT
        if not is_single or "too short" not in str(error):
            raise
        return
    case.assert_right(transformed, [{}])


LITERALS = [
    (name, spec)
    for name, spec in recipes(OPERATORS | CONTRACTIONS, 0)
    if EINSUMS[name].size_params and spec.name != "rowwise"
]
LITERALS_IN_EVERY_RUN = ("mass", "matrix product")


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param(
            name,
            spec,
            marks=() if name in LITERALS_IN_EVERY_RUN else pytest.mark.long,
            id=name,
        )
        for name, spec in LITERALS
    ],
)
def test_literal_extents_shorter_than_a_block_are_right(name, spec):
    """A recipe is right, or refused as too short, where literal extents take the
    place of parameters: in the einsum, or in the kernel only.
    """
    transform = find_transform(spec.name, spec.version)
    for size in SMALL:
        sizes = _small(name, size)
        case = generated(with_literals(EINSUMS[name], sizes))
        assert_right_if_it_fits(case, transform, spec)
        nest = replace(case.nest, einsum=EINSUMS[name], sizes=constantdict(sizes))
        assert_right_if_it_fits(replace(case, nest=nest), transform, spec)


def test_recipes_that_share_a_kernel_do_not_disturb_each_other():
    """Loop domains that differ in names only are not mixed up: recipes with roles
    exchanged both build, though they start from one kernel.
    """
    name = "matrix times itself"
    for vector, register in (("i", "k"), ("k", "i")):
        sizes = {"lanes": 4, "vectors": 2, "rows": 4, "width": 96, "height": 96}
        roles = {"vector": vector, "register": register, "inside": "rows", "depth": 64}
        spec = PACKED_CONTRACTION.spec({**sizes, **roles, "stores": "cached"})
        assert_right(name, spec)


@pytest.mark.parametrize("rows", [3, 4])
def test_every_remainder_of_a_register_tile_is_right(rows):
    """The last tile of rows is right however many of them are in the array."""
    (first,) = (
        t for t in find_applicable_transforms(EINSUMS["face mass"]) if "pack" in t.name
    )
    spec = next(iter(list_configurations(first, EINSUMS["face mass"])))
    vectors = max(2, -(-8 // rows))
    spec = first.spec({**spec.parameters, "rows": rows, "vectors": vectors})
    case = generated(EINSUMS["face mass"])
    sizes = [{case.nest.einsum.size_params[0].name: n} for n in range(24, 37)]
    case.assert_right(case.apply(spec), sizes)


BATCHES = {name: e for name, e in OPERATORS.items() if len(e.rows) > 1}
OF_LOOPY = (*ANY_EXTENT, "element_blocked")
"""Families whose loops are ordered by Loopy, or a row at a time."""


@pytest.mark.parametrize(
    ("name", "spec"),
    spread((x for x in recipes(BATCHES, 0) if x[1].name not in OF_LOOPY), 3),
)
def test_a_batch_has_one_order_of_loops(name, spec):
    """However many rows there are: Loopy compares all orders with each other, in a
    time that grows with the cube of their number.
    """
    kernel = generated(BATCHES[name]).apply(spec).default_entrypoint
    assert len(kernel.loop_priority) == 1


def test_the_same_code_is_generated_again():
    """Applying a recipe changes nothing in the kernel that it is applied to."""
    case = generated(EINSUMS["mass"])
    before = str(case.t_unit)
    spec = sampled(EINSUMS["mass"], find_applicable_transforms(EINSUMS["mass"])[0], 0)[
        0
    ]
    first, second = (
        lp.generate_code_v2(case.apply(spec)).device_code() for _ in range(2)
    )
    assert first == second
    assert str(case.t_unit) == before


@st.composite
def long_einsums(draw):
    """Einsums with an output index of unknown extent, the others short, of one
    dtype: what families are made for, and much else.
    """
    sketch = draw(sketches(n_indices=5, n_terms=3, n_rows=2))
    short = [SIZES[x.name] if isinstance(x, SizeParam) else x for x in sketch.extents]
    return replace(
        sketch,
        extents=(SizeParam("N"), *short[1:]),
        output=tuple(dict.fromkeys((0, *sketch.output))),
        dtypes=(draw(st.sampled_from(DTYPES)),) * 3,
    ).build()


@counts(default=8, long=400)
@given(e=long_einsums())
def test_what_is_offered_for_any_einsum_is_right(e):
    """For random einsums of any dtype, what the families offer is right."""
    case = generated(e)
    for transform in find_applicable_transforms(e):
        spec = next(list_configurations(transform, e))
        sizes = [{"N": 13}, {"N": 2}] if e.size_params else [{}]
        case.assert_right(case.apply(spec), sizes)
