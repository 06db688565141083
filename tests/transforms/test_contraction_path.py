"""Contraction paths: what they are, what is offered, and what the recipes compute."""

from __future__ import annotations

import os
import re
from itertools import combinations

import loopy as lp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from feinsum import array, batched_einsum, einsum
from feinsum.canonical import canonicalize
from feinsum.errors import InvalidParameterError, TransformError
from feinsum.ir import BatchedEinsum
from feinsum.measure import compile_kernel
from feinsum.raising import raise_kernel
from feinsum.records import TransformSpec
from feinsum.suites import NAMES, read_suite
from feinsum.transforms import (
    apply_spec,
    check_spec,
    find_applicable_transforms,
    list_configurations,
)
from feinsum.transforms.library import CONTRACTION_PATH
from feinsum.transforms.library.contraction_path import (
    PairwisePath,
    count_nest_operations,
    find_good_paths,
)
from tests.children import run_python
from tests.portions import spread
from tests.strategies import SIZES, counts, sketches
from tests.transforms.support import (
    CHAINS,
    LOOPY_WARNINGS,
    device,
    generated,
    ragged_sizes,
    sampled,
    with_literals,
    written,
)

pytestmark = LOOPY_WARNINGS

CHAIN = CHAINS["chain of three"]
BATCH = CHAINS["chains over one index"]
PARAMETERS = {"steps": "best", "lanes": 4}


def recipe(path: object, **others: object) -> TransformSpec:
    return CONTRACTION_PATH.spec({"path": path, **PARAMETERS, **others})


def matrices(*names: str, extent: int | str = 40) -> list:
    return [array(name, (extent, extent)) for name in names]


def every_path(n_operands: int) -> list[PairwisePath]:
    """All of them, by choosing one pair after the other."""
    found: list[tuple[tuple[int, int], ...]] = [()]
    for n_left in range(n_operands, 1, -1):
        pairs = list(combinations(range(n_left), 2))
        found = [(*path, pair) for path in found for pair in pairs]
    return [PairwisePath(path) for path in found]


@st.composite
def paths(draw, n_operands: int) -> PairwisePath:
    pairs = []
    for n_left in range(n_operands, 1, -1):
        pair = draw(
            st.lists(st.integers(0, n_left - 1), min_size=2, max_size=2, unique=True)
        )
        pairs.append(tuple(sorted(pair)))
    return PairwisePath(tuple(pairs))


@st.composite
def products(draw, n_terms: int = 5, n_rows: int = 2) -> BatchedEinsum:
    """Random einsums of three operands or more, all in double precision."""
    sketch = draw(sketches(n_indices=5, n_terms=n_terms, n_rows=n_rows))
    assume(len(sketch.inputs) >= 3)
    return type(sketch)(
        sketch.extents, sketch.inputs, sketch.output, sketch.labels, ("<f8",) * 3
    ).build()


# paths


@given(data=st.data(), n=st.integers(2, 12))
def test_a_path_survives_its_text(data, n):
    """parse(str(path)) == path."""
    path = data.draw(paths(n))
    assert PairwisePath.parse(str(path), n) == path


@given(text=st.text(alphabet="0123 ,-", max_size=12) | st.text(max_size=8))
def test_what_is_no_path_is_refused(text):
    """Any text is the one spelling of a path, or refused."""
    try:
        path = PairwisePath.parse(text, 4)
    except InvalidParameterError:
        return
    assert str(path) == text


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "expected pairs"),
        ("0,1", "3 operands take 2 steps, not 1"),
        ("0,3 0,1", "0,3 does not name two of 3 arrays"),
        ("1,0 0,1", "1,0 does not name two of 3 arrays"),
        ("1,1 0,1", "1,1 does not name two of 3 arrays"),
        ("0,1\n0,1", "expected pairs"),
        ("0,٢ 0,1", "expected pairs"),
        ("0," + "9" * 5000 + " 0,1", "expected pairs"),
        (12, "expected pairs"),
        (("0,1", "0,1"), "expected pairs"),
    ],
)
def test_an_impossible_path_of_a_record_is_refused(path, why):
    """As an invalid parameter, when the recipe is checked and when it is applied."""
    case, spec = generated(CHAIN), recipe(path)
    with pytest.raises(InvalidParameterError, match=why):
        check_spec(spec, CHAIN)
    with pytest.raises(InvalidParameterError, match=why):
        case.apply(spec)
    with pytest.raises(InvalidParameterError, match=why):
        CONTRACTION_PATH.apply(case.t_unit, case.nest, spec.parameters)


def test_a_path_that_is_not_offered_is_valid():
    """Which ones are offered may change; a recipe on record is for ever."""
    assert "0,2 0,1" not in CONTRACTION_PATH.get_space(CHAIN)["path"]
    assert check_spec(recipe("0,2 0,1"), CHAIN) is CONTRACTION_PATH
    with pytest.raises(InvalidParameterError, match="outside its space"):
        check_spec(recipe("0,2 0,1", lanes=5), CHAIN)


@given(e=products(), data=st.data())
def test_the_steps_of_a_path_leave_the_result(e, data):
    """Every number is read once; an index goes when no later step needs it."""
    steps = data.draw(paths(e.n_operands)).steps(e)
    read = [factor for step in steps for factor in step.operands]
    numbers = range(e.n_operands + len(steps))
    assert sorted([*read, steps[-1].product]) == list(numbers)
    assert steps[-1].output == e.output
    gone = [index for step in steps for index in step.summed]
    assert sorted(gone) == sorted(e.summation_indices)


@counts(default=15, long=500)
@given(e=products(n_terms=4, n_rows=1))
def test_good_paths_are_near_the_best(e):
    """None of all paths takes less than half of the operations of the first."""
    least = min(path.n_operations(e) for path in every_path(e.n_operands))
    costs = [path.n_operations(e) for path in find_good_paths(e)]
    assert costs == sorted(costs)
    assert costs[0] <= 2 * least


def test_good_paths_are_the_same_in_every_process():
    """Names of indices are hashed in another way in each of them."""
    program = (
        "from tests.transforms.support import CHAINS\n"
        "from feinsum.transforms.library.contraction_path import find_good_paths\n"
        "print([list(map(str, find_good_paths(e))) for e in CHAINS.values()])"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    found = run_python("-W", "ignore", "-c", program, PYTHONHASHSEED=seed).stdout
    here = [list(map(str, find_good_paths(e))) for e in CHAINS.values()]
    assert found == f"{here}\n"


def test_products_of_shared_operands_come_first():
    """What is the same in all rows is multiplied once, if that is cheaper."""
    shared = matrices("A", "B")
    rows = [[*shared, c] for c in matrices("C", "D", "E")]
    one, three = (
        batched_einsum("ij,jk,kl->il", rows[:1]),
        batched_einsum("ij,jk,kl->il", rows),
    )
    first = PairwisePath.parse("0,1 0,1", 3)
    assert find_good_paths(three)[0] == first
    assert first.n_operations(three) == 2 * first.n_operations(one)


# where it fits


def test_operators_and_contractions_of_the_suites_are_left_to_other_families():
    """None of them takes far more operations in one nest."""
    for suite in NAMES:
        for entry in read_suite(suite):
            assert not CONTRACTION_PATH.fits(canonicalize(entry.einsum()).einsum)


@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_searched(name):
    """Whatever their names are, and with the fewest operations first."""
    e = canonicalize(CHAINS[name]).einsum
    assert CONTRACTION_PATH in find_applicable_transforms(e)
    first = PairwisePath.parse(CONTRACTION_PATH.get_space(e)["path"][0], e.n_operands)
    assert 8 * first.n_operations(e) <= count_nest_operations(e)


@pytest.mark.parametrize(
    "e",
    [
        einsum("ij,jk->ik", *matrices("A", "B")),
        einsum("ij,jk,kl->il", *matrices("A", "B", "C", extent=4)),
        einsum("i,j,k->ijk", *[array(name, 40) for name in "abc"]),
        einsum("ij,jk,kl->il", *[array(n, (40, 40), "int32") for n in "ABC"]),
        einsum("ij,jk,kl->il", *matrices("A", "B", "C", extent=0)),
    ],
)
def test_where_it_does_not_fit(e):
    """Two operands, short indices, nothing to sum, other dtypes, no entry at all."""
    assert not CONTRACTION_PATH.fits(e)
    with pytest.raises(InvalidParameterError, match="does not fit"):
        check_spec(recipe("0,1 0,1"), e)


def test_what_packing_folds_is_not_searched():
    """Packed tiles that multiply two operands take as few operations."""
    shapes = {"A": (12, 13), "B": (13, 12), "C": ("N", 12, 14)}
    e = einsum("ij,jk,bkl->bil", *[array(n, shape) for n, shape in shapes.items()])
    assert CONTRACTION_PATH.fits(e)
    assert CONTRACTION_PATH not in find_applicable_transforms(e)


# what the recipes compute


def assert_right(e, spec, sizes=None):
    case = generated(e)
    case.assert_right(case.apply(spec), sizes or ragged_sizes(e))


@pytest.mark.parametrize("name", spread(CHAINS, 3))
def test_another_configuration_is_right(name):
    """One more than the first, at extents that no tile divides."""
    for spec in sampled(CHAINS[name], CONTRACTION_PATH, 1)[1:]:
        assert_right(CHAINS[name], spec)


@pytest.mark.long
@pytest.mark.parametrize("name", CHAINS)
def test_all_configurations_are_right(name):
    """At extents that no tile divides."""
    for spec in list_configurations(CONTRACTION_PATH, CHAINS[name]):
        assert_right(CHAINS[name], spec)


@pytest.mark.parametrize(
    ("name", "size"), [("chain of three", 1), ("chains over one index", 5)]
)
def test_literal_extents_are_right(name, size):
    """Literal extents take the place of parameters, shorter than any tile."""
    e = CHAINS[name]
    sizes = {x.name: size for x in e.size_params}
    case = generated(with_literals(e, sizes))
    spec = next(list_configurations(CONTRACTION_PATH, e))
    t_unit = CONTRACTION_PATH.apply(case.t_unit, case.nest, spec.parameters)
    case.assert_right(t_unit, [{}])


@counts(default=10, long=600)
@given(e=products(n_terms=4), data=st.data())
def test_any_path_is_right_for_any_einsum(e, data):
    """Also with scalars, diagonals, outer products and repeated operands."""
    path = data.draw(paths(e.n_operands))
    case = generated(e)
    parameters = recipe(str(path)).parameters
    t_unit = CONTRACTION_PATH.apply(case.t_unit, case.nest, parameters)
    case.assert_right(t_unit, [{x.name: SIZES[x.name] for x in e.size_params}])


def global_arrays(t_unit):
    arrays = t_unit.default_entrypoint.temporary_variables.values()
    return [a for a in arrays if a.address_space == lp.AddressSpace.GLOBAL]


def test_each_step_is_a_device_kernel():
    """Its product is an array in global memory, of run-time extents if need be."""
    t_unit = generated(CHAIN).apply(recipe("1,2 0,1"))
    assert compile_kernel(t_unit, device()).built.n_launches == 2
    (product,) = global_arrays(t_unit)
    assert [str(extent) for extent in product.shape] == ["20", "M"]


@pytest.mark.parametrize(("path", "expected"), [("0,1 0,1", 1), ("1,2 0,1", 2)])
def test_rows_that_share_both_factors_share_the_product(path, expected):
    """Both rows have A and B; their last operands differ."""
    spec = recipe(path)
    t_unit = generated(BATCH).apply(spec)
    names = t_unit.default_entrypoint.temporary_variables
    n_products = sum(
        re.fullmatch(r"product(_\d+)?", name) is not None for name in names
    )
    assert n_products == expected
    assert_right(BATCH, spec, [{"N": 5}])


# kernels that people write

KERNEL = """
    f(p, q) := B[p,q] + 2*E[p,q]
    W[p,s] = W0[p] + 0.5*sum([q,r], A[p,q]*f(q,r)*C[r,s])   {id=chain}
"""
LOOPS = ["{[p,q,r,s]: 0<=p,s<n and 0<=q<20 and 0<=r<24}"]
USES = "z[w] = 2*W[w,0]   {id=use,dep=chain}"


def user_kernel(text):
    arrays = {"A": "n,20", "B,E": "20,24", "C": "24,n", "W": "n,n", "W0,z": "n"}
    return lp.make_kernel(
        [*LOOPS, "{[w]: 0<=w<n}"] if USES in text else LOOPS,
        text,
        [lp.GlobalArg(names, np.float64, shape=s) for names, s in arrays.items()]
        + [lp.ValueArg("n", np.int32)],
        lang_version=(2018, 2),
    )


def in_numpy(arguments):
    A, B, E, C = (arguments[name] for name in "ABEC")
    return arguments["W0"][:, None] + 0.5 * A @ (B + 2 * E) @ C


def test_operands_may_be_functions():
    """They are evaluated in the step that reads them; shift and scale are kept."""
    case = written(user_kernel(KERNEL), lambda a: {"W": in_numpy(a)})
    for spec in sampled(case.einsum, CONTRACTION_PATH, 1):
        case.assert_right(case.apply(spec), [{"n": n} for n in (1, 37, 130)])


def test_a_kernel_that_does_more_is_refused():
    """The barriers of a path would be in the middle of what else there is."""
    nest = raise_kernel(user_kernel(KERNEL + USES)).raised[0]
    einsum_ = nest.form.einsum
    spec = next(list_configurations(CONTRACTION_PATH, einsum_))
    with pytest.raises(TransformError, match="does more than the einsum"):
        apply_spec(spec, user_kernel(KERNEL + USES), nest.canonical_nest)
