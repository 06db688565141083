"""The mixins, over array contexts that keep to what arraycontext documents."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest
from loopy.diagnostic import ParameterFinderWarning

from feinsum.integrations import RetrievesEagerly, RetrievesLazily
from feinsum.records import InMemoryStore
from feinsum.targets.quiet import quiet
from tests.cpus import any_opencl
from tests.integrations.facts import einsums_of, facts_about

RNG = np.random.default_rng(0)
J, D, U = RNG.random((3, 3, 700)), RNG.random((3, 10, 10)), RNG.random((700, 10))
ARGUMENTS = {"arg0": J, "arg1": D, "arg2": U}
EXPECTED = np.einsum("xre,rij,ej->xei", J, D, U, optimize=True)


class PlainContext:
    """Builds a kernel when it is called, as array contexts do."""

    def __init__(self):
        self.queue = any_opencl().queue
        self.asked = []
        self.built = []

    def transform_loopy_program(self, t_unit):
        self.asked.append(t_unit)
        return t_unit

    def call_loopy(self, t_unit, **arguments):
        program = self.transform_loopy_program(t_unit)
        self.built.append(program)
        with quiet(ParameterFinderWarning):
            _, result = program.executor(self.queue.context)(self.queue, **arguments)
        return result


class Eager(RetrievesEagerly, PlainContext):
    feinsum_database = InMemoryStore()


class Lazy(RetrievesLazily, PlainContext):
    feinsum_database = InMemoryStore()


def gradient():
    """The kernel that ``einsum`` of an eager context makes: everything is open."""
    return lp.make_einsum("xre,rij,ej->xei", ("arg0", "arg1", "arg2"))


def is_parallel(t_unit):
    inames = t_unit.default_entrypoint.inames.values()
    return any(str(tag).startswith("g.") for iname in inames for tag in iname.tags)


@pytest.fixture
def knowing():
    """An eager context whose database knows the kernel."""
    context = Eager()
    context.feinsum_database = facts_about(einsums_of(gradient(), ARGUMENTS))
    return context


def test_an_eager_kernel_is_retrieved_for_the_arguments_of_its_call(knowing):
    """The transformed kernel runs and gives numpy's result; nobody else is asked."""
    (result,) = knowing.call_loopy(gradient(), **ARGUMENTS)
    assert np.allclose(result, EXPECTED, rtol=1e-13, atol=0)
    assert is_parallel(knowing.built[0])
    assert knowing.asked == []


def test_a_kernel_is_looked_up_once_for_arguments_of_a_kind(knowing):
    """The second call gets the very program of the first; other shapes do not."""
    for n in (700, 700, 601):
        shorter = {"arg0": J[..., :n].copy(), "arg1": D, "arg2": U[:n]}
        (result,) = knowing.call_loopy(gradient(), **shorter)
        assert np.allclose(result, EXPECTED[:, :n], rtol=1e-13, atol=0)
    first, second, third = knowing.built
    assert first is second
    assert is_parallel(third)


def test_sizes_that_a_recipe_fixed_are_left_out_of_the_call(knowing):
    """Sizes may be given beside the arrays, as the kernel was written."""
    sizes = {"Ne": 700, "Nx": 3, "Nr": 3, "Ni": 10, "Nj": 10}
    (result,) = knowing.call_loopy(gradient(), **ARGUMENTS, **sizes)
    assert np.allclose(result, EXPECTED, rtol=1e-13, atol=0)
    assert is_parallel(knowing.built[0])


def test_without_a_fact_an_eager_context_does_what_it_did():
    """Its own transform is asked once, for the program as it was."""
    context, t_unit = Eager(), gradient()
    for _ in range(2):
        (result,) = context.call_loopy(t_unit, **ARGUMENTS)
    assert np.allclose(result, EXPECTED, rtol=1e-13, atol=0)
    assert context.asked == [t_unit]


def test_a_lazy_context_retrieves_what_it_generates():
    """A program with dtypes and sizes is transformed where programs are."""
    context = Lazy()
    typed = lp.add_dtypes(gradient(), dict.fromkeys(ARGUMENTS, np.float64))
    sizes = {"Nx": 3, "Nr": 3, "Ni": 10, "Nj": 10, "Ne": 700}
    t_unit = lp.fix_parameters(typed, **sizes)
    assert context.transform_loopy_program(t_unit) is t_unit
    context.feinsum_database = facts_about(einsums_of(t_unit))
    assert is_parallel(context.transform_loopy_program(t_unit))
    assert context.asked == [t_unit]
