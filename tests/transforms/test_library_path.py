"""Many operands by a library of the host: every path right, and memory bounded."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum import array, batched_einsum, call_einsum, canonicalize, einsum
from feinsum.errors import InvalidParameterError, TransformError
from feinsum.measure import compile_kernel
from feinsum.options import INTERMEDIATE_VARIABLE
from feinsum.predict import predict_recipes
from feinsum.raising import raise_kernel
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.targets.units import LibraryUnit
from feinsum.transforms import (
    apply_spec,
    check_spec,
    list_configurations,
    with_named_steps,
)
from feinsum.transforms.host import LIBRARY_PATH
from tests.portions import spread
from tests.transforms.support import (
    LOOPY_WARNINGS,
    device,
    generated,
    ragged_sizes,
    written,
)
from tests.transforms.test_user_kernels import ALPHA, kernel

pytestmark = LOOPY_WARNINGS


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    """Nothing is timed here, so that nothing need wait for the threads of a library."""
    monkeypatch.setattr("feinsum.measure.kernel.SPIN_S", 0)


def arrays(dtype="f8", **shapes):
    return [array(name, shape, dtype) for name, shape in shapes.items()]


CHAIN = arrays(A=("N", 20), B=(20, 24), C=(24, "M"))
EINSUMS = {
    "chain": einsum("ij,jk,kl->il", *CHAIN),
    "moved axes": einsum(
        "ja,ikcb,kbda->ijcd", *arrays(A=(9, 8), B=("N", 7, 10, 6), C=(7, 6, "M", 8))
    ),
    "one matrix twice": einsum(
        "ab,bc,cd->ad", *arrays(A=(30, 40)), *2 * arrays(B=(40, 40))
    ),
    "a vector at the end": einsum("ij,jk,k->i", *arrays(A=("N", 50), B=(50, 60), x=60)),
    "a scalar": einsum("i,ij,j->", *arrays(x="N", A=("N", 50), y=50)),
    "four in single precision": einsum(
        "ea,fb,ab,gf->eg", *arrays("f4", P=(9, 60), Q=(80, 70), T=(60, 70), R=("N", 80))
    ),
    "complex": einsum("ij,jk,kl->il", *arrays("c16", A=("N", 9), B=(9, 8), C=(8, 7))),
    "a product without a sum": einsum(
        "eq,qi,qj->eij", *arrays("c16", u=("N", 9), A=(9, 8), B=(9, "M"))
    ),
    "a weight of each entry": einsum(
        "aij,bij,ij->ab", *arrays(A=(9, 8, "N"), B=(7, 8, "N"), w=(8, "N"))
    ),
    "rows that share a product": batched_einsum(
        "ij,jk,kl->il", [[*CHAIN[:2], c] for c in arrays(C=(24, "M"), D=(24, "M"))]
    ),
}


@pytest.mark.parametrize("name", spread(EINSUMS, 5))
def test_every_path_is_right_in_short_and_in_full(name):
    """Run-time extents that nothing divides, and steps that name their recipes."""
    e = EINSUMS[name]
    case = generated(e)
    specs = [*list_configurations(LIBRARY_PATH, e)]
    assert specs
    for short in specs:
        full = with_named_steps(short, e)
        assert TransformSpec.parse(str(full)) == full
        assert with_named_steps(full, e) == full
        for spec in (short, full):
            case.assert_right(case.apply(spec), ragged_sizes(e))


NO_PRODUCTS = {
    "two operands": ("ij,jk->ik", CHAIN[:2]),
    "a pointwise step": ("ij,ij,ij->ij", [CHAIN[0]] * 3),
    "a diagonal": ("ii,ij,jk->k", arrays(A=(50, 50), B=(50, 50), C=(50, 50))),
    "integers": ("ij,jk,kl->il", arrays("i8", A=(50, 50), B=(50, 50), C=(50, 50))),
}


@pytest.mark.parametrize("name", NO_PRODUCTS)
def test_what_is_no_chain_of_products_has_no_such_path(name):
    """Other families have a recipe for it."""
    subscripts, operands = NO_PRODUCTS[name]
    assert not LIBRARY_PATH.fits(einsum(subscripts, *operands))


def test_functions_are_evaluated_where_they_are_read():
    """Of operands, and of the result: nothing but products is materialized."""
    unit = kernel(
        "{[i,j,k,l]: 0<=i,l<N and 0<=j<19 and 0<=k<23}",
        "out[i,l] = 2*sum([j,k], (alpha*A[i,j] + 1)*B[j,k]*(C[k,l] - A[0,0]))",
        {"A": "N,19", "B": "19,23", "C": "23,N", "out": "N,N"},
        args=[ALPHA],
    )

    def expected(a):
        left, right = a["alpha"] * a["A"] + 1, a["C"] - a["A"][0, 0]
        return {"out": 2 * (left @ a["B"] @ right)}

    case = written(unit, expected)
    for spec in list_configurations(LIBRARY_PATH, case.einsum):
        case.assert_right(case.apply(spec), [{"N": n} for n in (1, 37, 301)])


def test_nothing_is_built_and_the_unit_is_that_of_the_user():
    """Code is generated only where the host has no access."""
    e = EINSUMS["chain"]
    case = generated(e)
    unit = case.apply(next(list_configurations(LIBRARY_PATH, e)))
    assert isinstance(unit, LibraryUnit)
    assert unit.plain == case.t_unit
    assert compile_kernel(unit, device()).built.n_launches == 0


def test_a_kernel_that_does_more_is_refused():
    """Another recipe is tried for it."""
    unit = kernel(
        "{[i,j,k,l,m]: 0<=i,j,k,l,m<32}",
        "out[i,l] = sum([j,k], A[i,j]*A[j,k]*A[k,l])\ntwo[m] = 2*A[m,0]",
        {"A,out": "32,32", "two": "32"},
    )
    raised = raise_kernel(unit)
    nest = raised.raised[0].canonical_nest
    spec = next(list_configurations(LIBRARY_PATH, nest.einsum))
    with pytest.raises(TransformError, match="more than the einsum"):
        apply_spec(spec, raised.t_unit, nest)


FOREIGN = {
    "too few": ("library_contraction@1(block=16, index='', stacked='')",),
    "of another family": ("generic@2(block=8)",) * 2,
    "of no family": ("none@1()",) * 2,
    "no recipes": ("", ""),
    "no block": ("library_contraction@1(block=5, index='', stacked='')",) * 2,
}


@pytest.mark.parametrize("steps", FOREIGN.values(), ids=FOREIGN)
def test_steps_of_a_record_are_checked(steps):
    """A record may say anything; what is no recipe of a step is refused."""
    e = EINSUMS["chain"]
    short = next(list_configurations(LIBRARY_PATH, e))
    spec = LIBRARY_PATH.spec({**short.parameters, "steps": steps})
    with pytest.raises(InvalidParameterError):
        check_spec(spec, e)


def test_products_count_as_intermediates(monkeypatch):
    """A path whose products have no room is not predicted."""
    e = canonicalize(
        einsum("ij,jk,kl->il", *arrays(A=(50, 500), B=(500, 600), C=(600, 40)))
    ).einsum

    def found():
        return [
            x.spec
            for x in predict_recipes(e, {}, device().device)
            if x.spec.name == LIBRARY_PATH.name
        ]

    (spec, *_) = found()
    n_bytes = LIBRARY_PATH.count_intermediate_bytes(e, spec.parameters)
    monkeypatch.setenv(INTERMEDIATE_VARIABLE, str(n_bytes))
    assert spec in found()
    monkeypatch.setenv(INTERMEDIATE_VARIABLE, str(n_bytes - 1))
    assert spec not in found()


def test_a_call_by_a_path_of_products_gives_numpys_result(monkeypatch):
    """What is predicted may be a library; the call looks like any other."""
    monkeypatch.setattr(
        "feinsum.calling.predicted.predict_recipes",
        lambda *a, **k: [
            x for x in predict_recipes(*a, **k) if x.spec.name == LIBRARY_PATH.name
        ],
    )
    rng = np.random.default_rng(0)
    a, b, c = (rng.random(shape) for shape in ((150, 160), (160, 170), (170, 180)))
    found = call_einsum("ij,jk,kl->li", a, b, c, database=InMemoryStore())
    np.testing.assert_allclose(found, (a @ b @ c).T, rtol=1e-12)


def test_an_extent_that_is_no_argument_is_refused():
    """The program gets its sizes from the caller."""
    e = EINSUMS["chain"]
    case = generated(e)
    kernel_without = case.t_unit.default_entrypoint
    left = [arg for arg in kernel_without.args if arg.name != "N"]
    unit = case.t_unit.with_kernel(kernel_without.copy(args=left))
    with pytest.raises(TransformError, match="N is not an argument"):
        apply_spec(next(list_configurations(LIBRARY_PATH, e)), unit, case.nest)
