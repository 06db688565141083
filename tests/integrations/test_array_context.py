"""Array contexts that retrieve, where the package arraycontext is installed."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
from pyopencl.tools import ImmediateAllocator

from benchmarks import array_context as rhs
from feinsum import array, einsum, raise_kernel
from feinsum.errors import FeinsumError
from feinsum.integrations import eager_array_context, lazy_array_context
from feinsum.records import InMemoryStore, MatchLevel
from feinsum.retrieval import look_up
from tests.cpus import any_opencl
from tests.integrations.facts import facts_about
from tests.integrations.test_mixins import EXPECTED, D, J, U, is_parallel

SUBSCRIPTS = "xre,rij,ej->xei"
OPERATORS = (
    einsum(
        SUBSCRIPTS,
        array("J", (3, 3, "E")),
        array("D", (3, 10, 10)),
        array("u", ("E", 10)),
    ),
    einsum(
        "xre,rij,xej->ei",
        array("J", (3, 3, "E")),
        array("D", (3, 10, 10)),
        array("g", (3, "E", 10)),
    ),
    einsum(
        "ifj,fe,fej->ei",
        array("L", (10, 4, 6)),
        array("J", (4, "E")),
        array("F", (4, "E", 6)),
    ),
)
"""Of the right-hand side, without the functions of their operands."""


@pytest.fixture
def _others_warn():
    """The warnings of other packages, and of islpy, are not ours to answer for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def remembering(make, store):
    """An array context with facts that remembers what it transformed.

    Memory is allocated as buffers: the default of lazy contexts, shared virtual
    memory, makes PoCL 3.0 crash.
    """
    pytest.importorskip("arraycontext", reason="arraycontext is not installed")
    try:
        base = make(database=store)
    except FeinsumError as error:
        pytest.skip(str(error))

    class Remembering(base):
        def transform_loopy_program(self, t_unit):
            self.given.append(t_unit)
            self.made.append(super().transform_loopy_program(t_unit))
            return self.made[-1]

    queue = any_opencl().queue
    context = Remembering(queue, allocator=ImmediateAllocator(queue))
    context.given, context.made = [], []
    return context


@pytest.mark.parametrize("make", [eager_array_context, lazy_array_context])
def test_a_missing_package_is_one_clear_error(make, monkeypatch):
    """It names the package and the page that says which versions work."""
    monkeypatch.setitem(sys.modules, "arraycontext", None)
    with pytest.raises(FeinsumError, match="package arraycontext is needed") as caught:
        make()
    assert "docs/how-to/integrations.md" in str(caught.value)


@pytest.mark.usefixtures("_others_warn")
def test_an_eager_einsum_is_retrieved():
    """``actx.einsum`` runs the transformed kernel and gives numpy's result."""
    plain = remembering(eager_array_context, InMemoryStore())
    arrays = [plain.from_numpy(array) for array in (J, D, U)]
    try:
        assert np.allclose(plain.to_numpy(plain.einsum(SUBSCRIPTS, *arrays)), EXPECTED)
    except RuntimeError:  # the transform of old versions knows few names of loops
        assert plain.made == []
    t_unit = plain.given[-1]
    call = {f"arg{k}": array for k, array in enumerate((J, D, U))}
    store = facts_about(n.einsum for n in raise_kernel(t_unit, arguments=call).raised)
    context = remembering(eager_array_context, store)
    result = context.to_numpy(context.einsum(SUBSCRIPTS, *arrays))
    assert np.allclose(result, EXPECTED, rtol=1e-13, atol=0)
    assert is_parallel(context.made[-1])


@pytest.mark.usefixtures("_others_warn")
@pytest.mark.parametrize("how", ["compile", "freeze"])
@pytest.mark.parametrize("program", ["einsum", "einsum and more"])
def test_a_lazy_einsum_is_retrieved(how, program):
    """A compiled or frozen program is the transformed one, and right."""
    expected = EXPECTED if program == "einsum" else 2 * EXPECTED * np.exp(U) + U * U
    plain = remembering(lazy_array_context, InMemoryStore())
    result = evaluated(plain, how, program)
    assert np.allclose(result, expected, rtol=1e-13, atol=0)
    nests = raise_kernel(plain.given[-1]).raised
    einsums = [nest.einsum for nest in nests if nest.einsum.summation_indices]
    context = remembering(lazy_array_context, facts_about(einsums))
    result = evaluated(context, how, program)
    assert np.allclose(result, expected, rtol=1e-13, atol=0)
    assert len(einsums) == 1
    assert is_parallel(context.made[-1])


def evaluated(context, how, program):
    """What a lazy context makes of a program, as an array of numpy's."""

    def evaluate(j, d, u):
        gradient = context.einsum(SUBSCRIPTS, j, d, u)
        if program == "einsum":
            return gradient
        return 2 * gradient * context.np.exp(u) + u * u

    arrays = [context.from_numpy(array) for array in (J, D, U)]
    call = context.compile(evaluate) if how == "compile" else evaluate
    return context.to_numpy(call(*arrays))


@pytest.mark.usefixtures("_others_warn")
def test_a_right_hand_side_finds_every_fact():
    """Three operators of products and other functions, and what adds them up."""
    arrays = rhs.random_arrays(700)
    expected = rhs.evaluated_by_numpy(**arrays)
    store = facts_about(OPERATORS)
    context = remembering(lazy_array_context, store)
    result = context.to_numpy(rhs.compiled(context, arrays)())
    assert np.allclose(result, expected, rtol=1e-11, atol=1e-11)
    found = look_up(context.given[-1], database=store)
    assert not found.raised.refused
    operators = [n for n in found.nests if n.nest.einsum.summation_indices]
    assert [n.match.level for n in operators] == [MatchLevel.EXACT] * len(OPERATORS)
