"""Problems: which einsum is tuned, at which sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum import array, canonicalize, einsum
from feinsum.errors import InvalidEinsumError
from feinsum.ir import BatchedEinsum, evaluate
from feinsum.measure import count_footprint_bytes
from feinsum.measure.cases import make_ragged_cases
from feinsum.records import TransformSpec, from_json, to_json
from feinsum.tuning import (
    TrialOutcome,
    TuningProblem,
    choose_default_sizes,
    make_problem,
)
from feinsum.tuning.problem import DEFAULT_FOOTPRINT_BYTES
from feinsum.tuning.trials import TrialAnswer, TrialRequest
from tests.db.factories import make_environment, make_measurement
from tests.strategies import counts, einsums, relabelings

GEMM = einsum("ik,kj->ij", array("A", ("M", "K")), array("B", ("K", "P")))


@pytest.mark.parametrize(
    "sizes",
    [{"Q": 3}, {"M": 0}, {"M": 2.0}, {"M": "8"}, {"M": True}, {"M": 4, "i": 4}],
)
def test_bad_sizes_are_refused(sizes):
    """A size has the name of a parameter of the einsum and is a positive integer."""
    with pytest.raises(InvalidEinsumError, match=r"expected positive values") as caught:
        make_problem(GEMM, sizes)
    assert caught.value.rules == ("size",)
    assert "['K', 'M', 'P']" in str(caught.value)
    for unnamed in ([5], 5, "n"):
        with pytest.raises(InvalidEinsumError, match="by name"):
            make_problem(GEMM, unnamed)
    fixed = einsum("ij->i", array("A", (3, 4)))
    with pytest.raises(InvalidEinsumError, match="expected none, for every extent"):
        make_problem(fixed, {"i": 3})


def test_there_is_nothing_to_tune_where_nothing_is_computed():
    """An extent of 0 is refused before a kernel is made."""
    empty = einsum("ij,j->i", array("A", ("n", 0)), array("x", 0))
    with pytest.raises(InvalidEinsumError, match="nothing to tune") as caught:
        make_problem(empty)
    assert caught.value.rules == ("size",)


def test_sizes_are_renamed_to_the_canonical_einsum():
    """A size is given in the names of the einsum and kept in canonical ones."""
    problem = make_problem(GEMM, {"M": 3, "K": np.int64(5), "P": 7})
    renamed = canonicalize(GEMM).relabeling.size_params
    assert problem.workload_text == canonicalize(GEMM).text
    assert problem.sizes == {renamed["M"]: 3, renamed["K"]: 5, renamed["P"]: 7}
    assert {type(n) for n in problem.sizes.values()} == {int}


def test_long_literal_extents_are_sizes():
    """A long extent becomes a parameter, tuned at that value unless told otherwise."""
    literal = einsum("ij,j->i", array("A", (900, 4)), array("x", 4))
    general = einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))
    assert make_problem(literal) == make_problem(general, {"n": 900})
    assert make_problem(literal, {"n900": 50}) == make_problem(general, {"n": 50})


@counts(25, 500)
@given(einsums())
def test_default_sizes_stay_within_the_footprint(random: BatchedEinsum):
    """All arrays together take at most 64 MB, and no size is zero."""
    sizes = choose_default_sizes(random)
    assert set(sizes) == {x.name for x in random.size_params}
    assert all(size >= 1 for size in sizes.values())
    assert count_footprint_bytes(random, sizes) <= DEFAULT_FOOTPRINT_BYTES


def test_default_sizes_use_the_footprint():
    """A default is large: half of the footprint is used at least; and no more than all,
    however many axes there are.
    """
    tensor = einsum("abcde->abcde", array("T", tuple("VWXYZ")))
    assert (
        count_footprint_bytes(tensor, choose_default_sizes(tensor))
        <= DEFAULT_FOOTPRINT_BYTES
    )
    sizes = choose_default_sizes(canonicalize(GEMM).einsum)
    assert len(set(sizes.values())) == 1
    assert count_footprint_bytes(canonicalize(GEMM).einsum, sizes) > 32_000_000


def test_given_sizes_leave_less_for_the_others():
    """Where one size is given, the others make room for it."""
    problem = make_problem(GEMM, {"M": 1_000_000})
    renamed = canonicalize(GEMM).relabeling.size_params
    assert problem.sizes[renamed["M"]] == 1_000_000
    assert 1 <= problem.sizes[renamed["K"]] == problem.sizes[renamed["P"]]
    assert (
        count_footprint_bytes(problem.einsum, problem.sizes) <= DEFAULT_FOOTPRINT_BYTES
    )


@pytest.mark.parametrize(
    ("subscripts", "shapes", "n_params"),
    [
        ("ij,j->i", [("N", 4), (4,)], 1),
        ("ij,j->i", [(30, 4), (4,)], 1),
        ("ik,kj->ij", [(30, 4), (4, 20)], 2),
        ("ij->", [(30, 4)], 0),
    ],
)
def test_ragged_cases_have_run_time_sizes(subscripts, shapes, n_params):
    """Free indices get sizes that no tile divides; each has 1, and some beyond 300."""
    operands = [array("AB"[k], shape) for k, shape in enumerate(shapes)]
    variant, cases = make_ragged_cases(einsum(subscripts, *operands))
    assert len(variant.size_params) == n_params
    assert len(cases) == (3 if n_params else 0)
    for sizes in cases:
        assert set(sizes) == {x.name for x in variant.size_params}
        rng = np.random.default_rng(0)
        arrays = {
            op.name: rng.normal(
                size=[n if isinstance(n, int) else sizes[n.name] for n in op.shape]
            )
            for op in variant.operands
        }
        assert np.isfinite(evaluate(variant, arrays)[0]).all()
    if cases:
        assert set(cases[0].values()) == {1}
        assert 301 in cases[2].values()


def test_ragged_cases_keep_an_array_in_two_roles():
    """Where an array ties a free to a contraction index, no extent changes."""
    A = array("A", (4, 4))
    square = einsum("ik,kj->ij", A, A)
    assert make_ragged_cases(square) == (square, [])


@counts(20, 300)
@given(st.data(), einsums(n_indices=4, n_rows=2))
def test_a_problem_does_not_depend_on_names(data: st.DataObject, one: BatchedEinsum):
    """Isomorphic einsums are one problem, whatever their names and order."""
    relabeling = data.draw(relabelings(one))
    sizes = {x.name: 2 + k for k, x in enumerate(one.size_params)}
    renamed = {relabeling.size_params[name]: n for name, n in sizes.items()}
    first = make_problem(one, sizes)
    second = make_problem(relabeling.apply(one), renamed)
    assert first.workload_text == second.workload_text
    assert sorted(first.sizes.values()) == sorted(second.sizes.values())


MESSAGES = [
    TrialRequest(make_problem(GEMM, {"M": 3, "K": 5, "P": 7}, "pthread")),
    TrialRequest(specs=(TransformSpec("rowwise", 1, {"block": 8, "index": "a"}),)),
    TrialRequest(
        specs=(TransformSpec("t", 2, {"order": ("a", 1)}),), is_comparison=True
    ),
    TrialAnswer(environment=make_environment()),
    TrialAnswer(error_code="device-unavailable", error="é\n'quoted' \"twice\""),
    TrialAnswer(
        (
            TrialOutcome(TransformSpec("t", 1, {}), "build-failed", "no\nway \x00"),
            TrialOutcome(
                TransformSpec("t", 1, {"on": True}), "ok", "", make_measurement()
            ),
        )
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=range(len(MESSAGES)))
def test_messages_round_trip(message):
    """Every message is one line of text, and reads back as itself."""
    text = to_json(message)
    assert "\n" not in text
    assert from_json(type(message), text) == message


def test_a_problem_reads_back_with_its_einsum():
    """The text of the workload is all that a trial needs to know of the einsum."""
    problem = make_problem(GEMM)
    again = from_json(TuningProblem, to_json(problem))
    assert again == problem
    assert again.einsum == canonicalize(GEMM).einsum
    assert again.form.key == canonicalize(GEMM).key


def test_ragged_cases_of_many_indices_are_affordable():
    """Six free indices of odd sizes together do not fill the memory."""
    shapes = {"A": (24, 16, 24, 24), "B": (24, 16, 16, 16)}
    operands = [array(name, shape) for name, shape in shapes.items()]
    many = einsum("dega,gfbc->abcdef", *operands)
    variant, cases = make_ragged_cases(many)
    assert len(variant.size_params) == 6
    assert all(count_footprint_bytes(variant, sizes) < 40e6 for sizes in cases)
    assert any(len(set(sizes.values())) > 3 for sizes in cases)
