"""Calls: refusals, results of every shape, and what is kept between them."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from feinsum import FeinsumError, FeinsumWarning, call_einsum
from feinsum.calling import clear_call_cache, prepare_call, read_call
from feinsum.canonical import canonicalize
from feinsum.errors import (
    DeviceUnavailableError,
    InvalidEinsumError,
    RecordNotFoundError,
)
from feinsum.records import InMemoryStore
from feinsum.transforms import REGISTRY, Transform
from tests.calling.comparing import NO_FACTS, assert_as_numpy
from tests.retrieval.facts import fact
from tests.retrieval.recipes import first_recipe

A = np.arange(12.0).reshape(3, 4)
U = np.arange(4.0 * 800).reshape(800, 4)


def facts_about(parsed, spec=None):
    """A store that holds one fact about the einsum of a call."""
    einsum = canonicalize(parsed.einsum).einsum
    store = InMemoryStore()
    store.add(fact(parsed.einsum, spec or first_recipe(einsum)))
    return store


@pytest.mark.parametrize(
    ("subscripts", "shapes", "rule", "words"),
    [
        ("ij,jk", [(3, 4), (5, 2)], "extent-clash",
         ["'j'", "extent 4 on axis 1 of operand 0", "extent 5 on axis 0 of operand 1"]),
        ("ii", [(1, 3)], "extent-clash", ["axis 0 of operand 0", "axis 1 of operand"]),
        ("ij,j", [(3, 4), (4, 1)], "rank", ["operand 1", "(4, 1)", "1 index"]),
        ("ij", [(3,), (4,)], "subscripts", ["1 term", "2 operands"]),
        ("ij->ik", [(3, 4)], "unbound-output-index", ["'k'"]),
        ("ij->ii", [(3, 3)], "repeated-output-index", ["'i'"]),
        ("...i->i", [(3, 3)], "subscripts", ["ellipsis"]),
        ("i-j", [(3, 3)], "subscripts", ["'-'"]),
        ("", [], "subscripts", ["1 term", "0 operands"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(subscripts, shapes, rule, words):
    """The error has the code of the rule, and names operands and axes."""
    with pytest.raises(InvalidEinsumError) as caught:
        call_einsum(subscripts, *map(np.ones, shapes))
    assert caught.value.rules == (rule,)
    assert not [word for word in words if word not in str(caught.value)]


def test_subscripts_must_be_text():
    """Numpy's other form of call is refused."""
    with pytest.raises(InvalidEinsumError, match="must be text"):
        call_einsum(A, [0, 1])


@pytest.mark.parametrize("dtype", ["M8[s]"])
def test_a_dtype_that_is_not_computed_is_refused(dtype):
    """The one error names it and says what to do."""
    with pytest.raises(InvalidEinsumError, match="convert them to numbers") as caught:
        call_einsum("i,i", np.zeros(3, dtype), np.zeros(3, dtype))
    assert caught.value.rules == ("dtype",)


@pytest.mark.parametrize("dtype", ["object"])
def test_a_dtype_that_no_kernel_has_is_refused_where_a_record_is_asked_for(dtype):
    """Otherwise numpy computes it; the error says which dtypes kernels have."""
    given = np.zeros(3, dtype), np.zeros(3, dtype)
    with pytest.raises(InvalidEinsumError, match="supported are integers") as caught:
        call_einsum("i,i", *given, on_miss="raise")
    assert caught.value.rules == ("dtype",)


@pytest.mark.parametrize("device", ["no such device"])
def test_a_device_that_is_not_there_is_an_error(device):
    """A call without a device has no other way to its result."""
    with pytest.raises(DeviceUnavailableError):
        call_einsum("ij->ji", A, device=device, database=NO_FACTS)


def test_truth_values_are_joined_not_counted():
    """More terms than fit an eight-bit sum are still true; rank 0 stays an array."""
    assert_as_numpy("ij,ij->", np.ones((16, 32), bool), np.ones((16, 32), bool))


def test_python_numbers_are_operands():
    """Scalars and lists are what numpy makes of them."""
    assert_as_numpy(",i->i", 2, [1.0, 2.0])


def test_zero_extents_need_no_kernel():
    """The result is zeros."""
    operands = np.ones((3, 0)), np.ones(0)
    assert prepare_call("ij,j->i", *operands, database=NO_FACTS).kernel is None


def test_an_object_that_is_given_twice_is_one_operand():
    """Equal but different arrays are two."""
    assert len(read_call("ei,ej->eij", U, U).einsum.operands) == 1
    assert len(read_call("ei,ej->eij", U, U.copy()).einsum.operands) == 2
    assert_as_numpy("ij,kj->ik", A, A)


def test_calls_that_differ_in_names_and_long_extents_share_a_kernel():
    """The kernel is that of the einsum with size parameters."""
    first, *others = (
        prepare_call(text, array, A, database=NO_FACTS).kernel
        for text, array in [("ej,ij->ei", U), ("Zq,pq->Zp", U), ("ej,ij", U[:600])]
    )
    assert all(kernel is first for kernel in others)
    assert_as_numpy("ej,ij->ei", U[:600], A)
    assert_as_numpy("ej,ij->ei", U[:499], A)


def test_a_call_of_the_same_kind_uses_what_is_kept():
    """Nothing is read, looked up or built again until the cache is cleared."""
    prepared = prepare_call("ij->j", A, database=NO_FACTS)
    assert prepare_call("ij->j", A + 1, database=NO_FACTS) is prepared
    assert prepare_call("ij->j", A[:2], database=NO_FACTS) is not prepared
    clear_call_cache()
    assert prepare_call("ij->j", A, database=NO_FACTS) is not prepared


def test_no_array_is_kept_alive():
    """Neither operands nor results outlive the call."""
    operand = A.copy()
    result = call_einsum("ij->i", operand, database=NO_FACTS)
    held = weakref.ref(operand), weakref.ref(result)
    del operand, result
    gc.collect()
    assert [reference() for reference in held] == [None, None]


def test_threads_share_calls():
    """Many threads with many calls get their own results, from one kernel each."""
    arrays = [np.full((3, 4), float(k)) for k in range(24)]
    texts = ["ij->i", "ij->j", "ij->ji"]

    def work(k):
        return call_einsum(texts[k % 3], arrays[k], database=NO_FACTS)

    clear_call_cache()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(24)))
    for k, result in enumerate(results):
        assert np.array_equal(result, np.einsum(texts[k % 3], arrays[k]))


def test_a_recorded_recipe_is_used():
    """The kernel is the retrieved one, and gives numpy's result at every size."""
    store = facts_about(read_call("ej,ij->ei", U, A))
    for n in (800, 613):
        prepared = prepare_call("ej,ij->ei", U[:n], A, database=store)
        assert prepared.kernel.is_retrieved
        assert_as_numpy("ej,ij->ei", U[:n], A, database=store)
    plain = prepare_call("ej,ij->ei", U, A, database=NO_FACTS).kernel
    assert not plain.is_retrieved


def test_a_recipe_that_cannot_be_built_is_passed_over(monkeypatch):
    """The untransformed kernel takes its place, but for ``on_miss="raise"``."""
    import loopy as lp

    def unroll(t_unit, nest, parameters):
        return lp.tag_inames(t_unit, {nest.inames[parameters["index"]]: "unr"})

    def space(workload):
        return {"index": workload.einsum.output}

    broken = Transform("unrolls_the_unknown", 1, "cannot be built", space, unroll)
    monkeypatch.setitem(REGISTRY, (broken.name, broken.version), broken)
    parsed = read_call("ej->e", U)
    store = facts_about(parsed, broken.spec({"index": "a"}))
    assert_as_numpy("ej->e", U, database=store)
    assert not prepare_call("ej->e", U, database=store).kernel.is_retrieved
    with pytest.raises(FeinsumError, match="no code can be generated"):
        call_einsum("ej->e", U, database=store, on_miss="raise")


def test_a_miss_is_reported_as_it_was_asked_for():
    """An error, a warning, or nothing."""
    with pytest.raises(RecordNotFoundError):
        call_einsum("ij->i", A, database=NO_FACTS, on_miss="raise")
    with pytest.warns(FeinsumWarning, match="no fact|nothing|given back"):
        call_einsum("ij->i", A, database=NO_FACTS, on_miss="warn")


def test_the_users_database_is_the_default():
    """Without ``database`` the one of the variable is asked, and its facts used."""
    import feinsum

    parsed = read_call("ej,kj->ke", U, A)
    with feinsum.open_store() as store:
        store.add(*facts_about(parsed).records())
    assert prepare_call("ej,kj->ke", U, A).kernel.is_retrieved
