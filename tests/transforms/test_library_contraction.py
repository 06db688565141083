"""Contractions by a library of the host: right, and to the caller like any kernel."""

from __future__ import annotations

import pickle
from dataclasses import replace
from threading import get_ident

import hypothesis
import loopy as lp
import numpy as np
import pytest
from hypothesis import strategies as st

from feinsum import array, batched_einsum, canonicalize, einsum, record_facts
from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum
from feinsum.measure import compile_kernel
from feinsum.records import TransformSpec
from feinsum.retrieval import look_up
from feinsum.targets.units import LibraryUnit
from feinsum.transforms import (
    apply_spec,
    find_applicable_transforms,
    list_configurations,
    suits_device,
)
from feinsum.transforms.host import LIBRARY_CONTRACTION
from feinsum.transforms.host.array_function import ArrayFunction, ArrayRead
from feinsum.transforms.host.contraction_program import evaluate_boxes
from tests.portions import spread
from tests.retrieval.facts import surely_faster
from tests.retrieval.support import given
from tests.transforms.support import (
    CONTRACTIONS,
    LOOPY_WARNINGS,
    device,
    generated,
    ragged_sizes,
    sampled,
    written,
)
from tests.transforms.test_user_kernels import ALPHA, FUNCTIONAL, SCALED, kernel

pytestmark = LOOPY_WARNINGS


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    """Nothing is timed here, so that nothing need wait for the threads of a library."""
    monkeypatch.setattr("feinsum.measure.kernel.SPIN_S", 0)


def doubles(**shapes):
    return [array(name, shape) for name, shape in shapes.items()]


MORE = {
    "moved on every side": einsum(
        "aebf,dfce->abcd", *doubles(A=("N", 5, 6, 3), B=(7, 3, "M", 5))
    ),
    "six output indices": einsum(
        "dega,gfbc->abcdef", *doubles(A=(5, 4, 6, "N"), B=(6, 3, 2, "M"))
    ),
    "complex": einsum(
        "ik,kj->ij", array("A", ("N", 6), "c16"), array("B", (6, 7), "c16")
    ),
    "batch index last": einsum("ikb,kjb->ijb", *doubles(A=("N", 6, 5), B=(6, 7, 5))),
    "matrix times vector": einsum("ij,j->i", *doubles(A=("N", 6), x=6)),
    "transposed matrix times vector": einsum("ij,i->j", *doubles(A=("N", 6), x="N")),
    "matrices times vectors": einsum("ijb,jb->ib", *doubles(A=("N", 6, 5), x=(6, 5))),
    "inner product": einsum("i,i->", *doubles(x="N", y="N")),
    "inner products": einsum("ib,bi->b", *doubles(x=("N", 5), y=(5, "N"))),
    "inner product of matrices": einsum("ij,ji->", *doubles(A=("N", 5), B=(5, "N"))),
    "two rows": batched_einsum(
        "ik,jk->ji",
        [doubles(A=("N", 9), B=(8, 9)), doubles(C=("N", 9), D=(8, 9))],
    ),
}
EINSUMS = {n: e for n, e in CONTRACTIONS.items() if LIBRARY_CONTRACTION.fits(e)} | MORE


@pytest.mark.parametrize("name", spread(EINSUMS, 10))
def test_every_recipe_is_right(name):
    """Run-time extents that nothing divides, both dtypes, any order of the axes."""
    e = EINSUMS[name]
    case = generated(e)
    for spec in sampled(e, LIBRARY_CONTRACTION, 3):
        case.assert_right(case.apply(spec), ragged_sizes(e))


MORE_FUNCTIONS = {
    "choices, roots and numbers of axes": (
        kernel(
            "{[i,j,k]: 0<=i,k<N and 0<=j<7}",
            "out[1,i,k] = sum(j, (A[i,j] if A[i,j] < 0.5 else sqrt(C[i,j]))"
            "*(exp(-B[0,k,j]) + B[0,k,j]**2/3))",
            {"A,C": "N,7", "B": "1,N,7", "out": "2,N,N"},
        ),
        lambda a: {
            "out": np.stack([
                np.full((a["A"].shape[0],) * 2, np.nan),
                np.where(a["A"] < 0.5, a["A"], np.sqrt(a["C"]))
                @ (np.exp(-a["B"][0]) + a["B"][0] ** 2 / 3).T,
            ])
        },
    ),
    "added to the result": (
        kernel(
            "{[i,j,k]: 0<=i,k<N and 0<=j<7}",
            "out[i,k] = out[i,k] + C[k] + alpha*sum(j, A[i,j]*B[j,k])",
            {"A": "N,7", "B": "7,N", "C": "N", "out": "N,N"},
            args=[ALPHA],
        ),
        lambda a: {"out": a["out"] + a["C"] + a["alpha"] * (a["A"] @ a["B"])},
    ),
}  # fmt: skip
# the kernel gets A, B and scales and shifts, unless a factor is outside of a difference
AFFINE = {
    "a factor of a sum": (
        "alpha*sum(j, (1 - 3*A[i,j]/alpha)*(-B[j,k]))",
        lambda a: a["alpha"] * ((1 - 3 * a["A"] / a["alpha"]) @ -a["B"]),
    ),
    "a factor of a difference": (
        "sum(j, (alpha*(A[i,j] - 1) + 2)*(B[j,k] + 1)) + alpha",
        lambda a: (a["alpha"] * (a["A"] - 1) + 2) @ (a["B"] + 1) + a["alpha"],
    ),
}
AFFINE_KERNELS = {
    name: (
        kernel(
            "{[i,j,k]: 0<=i,k<N and 0<=j<7}",
            f"out[i,k] = {text}",
            {"A": "N,7", "B": "7,N", "out": "N,N"},
            args=[ALPHA],
        ),
        lambda a, compute=compute: {"out": compute(a)},
    )
    for name, (text, compute) in AFFINE.items()
}
TAKEN = {
    "scaled": SCALED["product"],
    "affine": FUNCTIONAL["affine combination in a product"],
    "strided output": FUNCTIONAL["output through strides"],
    "added": MORE_FUNCTIONS["added to the result"],
} | AFFINE_KERNELS


@pytest.mark.parametrize("name", TAKEN)
def test_operands_scales_and_shifts_are_functions(name):
    """What a kernel computes at a point is what the library gets."""
    unit, expected = TAKEN[name]
    case = written(unit, expected)
    for spec in sampled(case.einsum, LIBRARY_CONTRACTION, 2):
        case.assert_right(case.apply(spec), [{"N": n} for n in (1, 37, 301)])


# of the second kernel, the first operand and the shifted sum
@pytest.mark.parametrize(("name", "n_evaluated"), [*zip(AFFINE, (0, 2), strict=True)])
def test_affine_functions_are_not_materialized(name, n_evaluated, monkeypatch):
    """Numbers that nearly cancel are subtracted before they are multiplied."""
    case = written(*AFFINE_KERNELS[name])
    evaluated, into = [], ArrayFunction.into

    def evaluate(self, *args):
        evaluated.append(self.body)
        into(self, *args)

    monkeypatch.setattr(ArrayFunction, "into", evaluate)
    A, B = 1 + 1e-9 * drawn(30)["A"], drawn(30)["B"]
    executor = device().prepare(library_unit(case)).executor()
    _, (result,) = executor(A=A, B=B, alpha=1e6)
    expected = case.expected({"A": A, "B": B, "alpha": 1e6})["out"]
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    assert len(evaluated) == n_evaluated


def test_only_what_the_kernel_writes_is_written():
    """A part of an array is written; the functions are those of the grammar."""
    unit, expected = MORE_FUNCTIONS["choices, roots and numbers of axes"]
    case = written(unit, expected)
    rng = np.random.default_rng(1)
    shapes = {"A": (9, 7), "B": (1, 9, 7), "C": (9, 7)}
    values = {name: rng.random(shape) for name, shape in shapes.items()}
    bound = compile_kernel(library_unit(case), device()).bind(values)
    bound.poison()
    bound.run()
    np.testing.assert_allclose(bound.read()["out"], expected(values)["out"], rtol=1e-13)


REFUSED = {
    "a strided read": ("A[2*i,j]", "2*N", "is read at"),
    "a shifted read": ("A[i+1,j]", "N+1", "is read at"),
    "a longer array": ("A[i,j]", "N+1", "entries along"),
    "a diagonal": ("A[i,j]*D[j,j]", "N", "reads a diagonal"),
    "an integer": ("A[i,j]*n", "N", "not a floating-point scalar"),
    "integers": ("A[i,j]*I[j]", "N", "other than a floating-point array"),
    "an unknown function": ("rsqrt(A[i,j])", "N", "calls rsqrt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_numpy_cannot_evaluate_is_refused_by_name(name):
    """A function outside of the grammar is an error of the transform with a reason."""
    function, extent, why = REFUSED[name]
    unit = kernel(
        "{[i,j,k]: 0<=i,k<N and 0<=j<7}",
        f"f(i, j) := {function}\nout[i,k] = sum(j, f(i,j)*B[j,k])",
        {"A": f"{extent},7", "B": "7,N", "D": "7,7", "out": "N,N"},
        args=[lp.ValueArg("n", np.int32), lp.GlobalArg("I", np.int32, shape=(7,))],
    )
    with pytest.raises(TransformError, match=why):
        library_unit(written(unit, dict))


def library_unit(case):
    spec = next(list_configurations(LIBRARY_CONTRACTION, case.einsum))
    return apply_spec(spec, case.t_unit, case.nest)


def product():
    """``(alpha*A + 1) @ (B - C)`` as a user writes it, and as numpy computes it."""
    return written(*TAKEN["affine"])


def drawn(n, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {"A": rng.random((n, 7)), "B": rng.random((7, n)), "C": rng.random((7, n))}
    return {**arrays, "alpha": 0.5}


def test_a_sum_without_terms_and_a_result_without_entries_are_right():
    """Zeros, and nothing."""
    e = einsum("ij,jk->ik", *doubles(A=("N", "K"), B=("K", "M")))
    case = generated(e)
    executor = device().prepare(library_unit(case)).executor()
    for n, k in ((3, 0), (0, 4), (0, 0)):
        a, b = np.ones((n, k)), np.ones((k, 5))
        _, (result,) = executor(A=a, B=b, N=n, K=k, M=5)
        np.testing.assert_array_equal(result, a @ b)


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"A": np.zeros((4, 6))}, ValueError, "shape mismatch on argument 'A'"),
        ({"A": np.zeros((4, 7), np.float32)}, TypeError, "dtype mismatch"),
        ({"alpha": None}, TypeError, "'alpha' was not given"),
        ({"A": None}, RuntimeError, "'A' must be supplied"),
    ],
)
def test_wrong_arguments_are_refused_as_loopy_does(changes, error, why):
    """The messages are those that a caller knows, and the next call is right."""
    case = product()
    executor = device().prepare(library_unit(case)).executor()
    values = drawn(4)
    with pytest.raises(error, match=why):
        executor(**{**values, **changes})
    _, (result,) = executor(**values)
    np.testing.assert_allclose(result, case.expected(values)["out"], rtol=1e-13)


CHANGES = {
    "another option": lambda unit: lp.set_options(unit, return_dict=True),
    "a split loop": lambda unit: lp.split_iname(unit, "i", 4),
    "pickling": lambda unit: pickle.loads(pickle.dumps(unit)),
    "a copy": lambda unit: unit.copy(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_unit_is_a_plain_one_and_right(change):
    """What is made from the unit is a kernel that Loopy generates code for."""
    case = product()
    unit = library_unit(case)
    changed = change(unit)
    assert isinstance(unit, LibraryUnit)
    assert type(changed) is lp.TranslationUnit
    assert unit == unit.plain
    assert hash(unit) == hash(unit.plain)
    case.assert_right(changed, [{"N": 37}])


# facts


def product_einsum() -> BatchedEinsum:
    return einsum("ij,jk->ik", *doubles(A=("N", 7), B=(7, "N")))


@pytest.fixture(scope="module")
def fact(tmp_path_factory):
    """A measured fact about the first recipe, no noise of which can make it useless."""
    e = product_einsum()
    spec = next(list_configurations(LIBRARY_CONTRACTION, canonicalize(e).einsum))
    path = tmp_path_factory.mktemp("facts") / "facts.sqlite"
    return surely_faster(record_facts(e, spec, sizes={"N": 300}, database=path))


def test_a_measured_fact_is_served(fact):
    """Recorded by the wall clock, read again, applied, explained, and right."""
    assert fact.measurement.timer == "wall"  # a run has no event of the device
    assert TransformSpec.parse(str(fact.spec)) == fact.spec
    unit, expected = TAKEN["affine"]
    found = look_up(unit, database=given(fact))
    assert found.applied == (fact.spec,)
    assert f"applied: {fact.spec}" in str(found)
    assert isinstance(found.t_unit, LibraryUnit)
    values = drawn(30)
    executor = device().prepare(found.t_unit).executor()
    _, (result,) = executor(**values)
    np.testing.assert_allclose(result, expected(values)["out"], rtol=1e-13)


def test_a_kernel_that_does_more_gets_another_recipe(fact):
    """A library computes whole kernels; others pass the recipe over, with a reason."""
    unit = kernel(
        "{[i,j,k,l]: 0<=i,k,l<N and 0<=j<7}",
        """
        out[i,k] = sum(j, A[i,j]*B[j,k])
        two[l] = 2*A[l,0]
        """,
        {"A": "N,7", "B": "7,N", "out": "N,N", "two": "N"},
    )
    found = look_up(unit, database=given(fact))
    assert not isinstance(found.t_unit, LibraryUnit)
    ((spec, why),) = next(n.failures for n in found.nests if n.failures)
    assert spec == fact.spec
    assert "does more than this einsum" in why


def on_gpu(environment):
    return replace(environment, device=replace(environment.device, kind="gpu"))


@pytest.mark.parametrize("policy", ["default", "loose"])
def test_it_is_never_served_on_another_kind_of_device(fact, policy, monkeypatch):
    """Whatever policy, a GPU has no use for it; nor has a search there."""
    environment = type(device()).environment
    monkeypatch.setattr(
        type(device()), "environment", lambda self, p: on_gpu(environment(self, p))
    )
    there = replace(fact, environment=on_gpu(fact.environment))
    found = look_up(TAKEN["affine"][0], database=given(fact, there), policy=policy)
    assert fact.spec not in found.applied


def test_it_is_searched_on_cpus_only():
    """Families for some devices are offered where the device is known to be one."""
    e = canonicalize(product_einsum()).einsum
    offered = {
        kind: LIBRARY_CONTRACTION in find_applicable_transforms(e, kind)
        for kind in ("cpu", "gpu", None)
    }
    assert offered == {"cpu": True, "gpu": False, None: False}
    spec = next(list_configurations(LIBRARY_CONTRACTION, e))
    assert suits_device(spec, "cpu")
    assert not suits_device(spec, "gpu")


# parts


@pytest.mark.parametrize("n_cores", [1, 5])
def test_cores_share_what_is_evaluated(n_cores):
    """Every entry is evaluated once, by as many threads as there are cores at most."""
    seen, threads = np.zeros((300, 700), int), set()
    ranges = {i: slice(0, n) for i, n in zip("ab", seen.shape, strict=True)}

    def evaluate(box):
        threads.add(get_ident())
        seen[box["a"], box["b"]] += 1

    evaluate_boxes(evaluate, ranges, ("b",), n_cores)
    assert (seen == 1).all()
    assert len(threads) <= n_cores
    assert (threads == {get_ident()}) == (n_cores == 1)


def test_an_error_of_a_thread_is_not_lost():
    with pytest.raises(ZeroDivisionError):
        evaluate_boxes(lambda box: 1 / 0, {"a": slice(0, 1 << 20)}, (), n_cores=2)


SOURCES = (
    ArrayRead("A", ("i", "j")),
    ArrayRead("B", ("j", "i")),
    ArrayRead("F", ("i", "j")),
    ArrayRead("A", ("j", "i")),
    "c",
)


def expressions():
    """Arithmetic of arrays of single and double precision and a scalar."""
    leaves = st.sampled_from([f"x{k}" for k in range(len(SOURCES))] + ["2"])
    return st.recursive(
        leaves, lambda x: st.builds("({} {} {})".format, x, st.sampled_from("+*-"), x)
    )


@hypothesis.given(body=expressions(), dtype=st.sampled_from(["f4", "f8"]))
def test_a_function_may_be_written_where_it_reads(body, dtype):
    """Its values are those in other memory, to the last bit."""
    rng = np.random.default_rng(0)
    values = {name: rng.random((5, 5)).astype(dtype) for name in "AB"}
    values |= {"F": values["B"].astype("f4"), "c": np.dtype(dtype).type(3)}
    function = ArrayFunction(body, SOURCES)
    apart = np.empty((5, 5), dtype)
    function.into(apart, values, ("i", "j"), {})
    function.into(values["A"], values, ("i", "j"), {})
    np.testing.assert_array_equal(values["A"], apart)
