"""Array contexts that retrieve, where the package arraycontext is installed.

The lazy one is tested where arraycontext and pytato are installed from source.
"""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

from benchmarks import array_context as rhs
from feinsum import array, einsum, raise_kernel
from feinsum.errors import DeviceUnavailableError, FeinsumError
from feinsum.integrations import FeinsumArrayContext, RetrievesEagerly
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


class Remembering:
    """Remembers the programs that an array context transformed, before and after."""

    def transform_loopy_program(self, t_unit):
        self.given.append(t_unit)
        self.made.append(super().transform_loopy_program(t_unit))
        return self.made[-1]

    @property
    def given(self):
        return vars(self).setdefault("_given", [])

    @property
    def made(self):
        return vars(self).setdefault("_made", [])


def eager(store):
    """An eager context over arraycontext's, with facts."""
    arraycontext = pytest.importorskip("arraycontext")
    from pyopencl.tools import ImmediateAllocator

    class Context(Remembering, RetrievesEagerly, arraycontext.PyOpenCLArrayContext):
        feinsum_database = store

    queue = any_opencl().queue
    return Context(queue, allocator=ImmediateAllocator(queue))


def lazy(store):
    """A lazy context with facts."""
    pytest.importorskip("pytato")

    class Context(Remembering, FeinsumArrayContext):
        pass

    try:
        return Context(any_opencl().queue, database=store)
    except FeinsumError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("package", ["arraycontext", "pytato"])
def test_a_missing_package_is_one_clear_error(package):
    """It names the package and the page that says which versions work."""
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from feinsum.integrations import FeinsumArrayContext\n"
        "from feinsum.errors import FeinsumError\n"
        "try: FeinsumArrayContext()\n"
        "except FeinsumError as error: print(error)"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "arraycontext" in said
    assert "docs/how-to/integrations.md" in said


@pytest.mark.usefixtures("_others_warn")
def test_an_eager_einsum_is_retrieved():
    """``actx.einsum`` runs the transformed kernel and gives numpy's result."""
    plain = eager(InMemoryStore())
    arrays = [plain.from_numpy(array) for array in (J, D, U)]
    try:
        assert np.allclose(plain.to_numpy(plain.einsum(SUBSCRIPTS, *arrays)), EXPECTED)
    except RuntimeError:  # the transform of old versions knows few names of loops
        assert plain.made == []
    t_unit = plain.given[-1]
    call = {f"arg{k}": array for k, array in enumerate((J, D, U))}
    store = facts_about(n.einsum for n in raise_kernel(t_unit, arguments=call).raised)
    context = eager(store)
    result = context.to_numpy(context.einsum(SUBSCRIPTS, *arrays))
    assert np.allclose(result, EXPECTED, rtol=1e-13, atol=0)
    assert is_parallel(context.made[-1])


@pytest.mark.usefixtures("_others_warn")
@pytest.mark.parametrize("how", ["compile", "freeze"])
@pytest.mark.parametrize("program", ["einsum", "einsum and more"])
def test_a_lazy_einsum_is_retrieved(how, program):
    """A compiled or frozen program is the transformed one, and right."""
    expected = EXPECTED if program == "einsum" else 2 * EXPECTED * np.exp(U) + U * U
    plain = lazy(InMemoryStore())
    result = evaluated(plain, how, program)
    assert np.allclose(result, expected, rtol=1e-13, atol=0)
    nests = raise_kernel(plain.given[-1]).raised
    einsums = [nest.einsum for nest in nests if nest.einsum.summation_indices]
    context = lazy(facts_about(einsums))
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
def test_a_context_chooses_its_device_and_a_clone_keeps_its_options():
    """The device of ``FEINSUM_DEVICE``; database and policy go with the clone."""
    pytest.importorskip("pytato")
    store = InMemoryStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEINSUM_DEVICE", any_opencl().device.id)
        context = lazy(store)
        chosen = FeinsumArrayContext(policy="strict").clone()
        assert chosen.queue.device == context.queue.device
        assert (chosen.feinsum_database, chosen.feinsum_policy) == (None, "strict")
        assert context.clone().feinsum_database is store
        patch.setenv("FEINSUM_DEVICE", "host")
        with pytest.raises(DeviceUnavailableError, match="FEINSUM_DEVICE=opencl"):
            FeinsumArrayContext()


@pytest.mark.usefixtures("_others_warn")
def test_a_right_hand_side_finds_every_fact():
    """Three operators of products and other functions, and what adds them up."""
    arrays = rhs.draw_arrays(700)
    expected = rhs.evaluate_by_numpy(**arrays)
    store = facts_about(OPERATORS)
    context = lazy(store)
    result = context.to_numpy(rhs.compile_call(context, arrays)())
    assert np.allclose(result, expected, rtol=1e-11, atol=1e-11)
    found = look_up(context.given[-1], database=store)
    assert not found.raised.refused
    operators = [n for n in found.nests if n.nest.einsum.summation_indices]
    assert [n.match.level for n in operators] == [MatchLevel.EXACT] * len(OPERATORS)
