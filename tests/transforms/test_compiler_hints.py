"""Hints to a compiler: they change how a kernel is compiled, not what it computes."""

from __future__ import annotations

import shutil

import loopy as lp
import numpy as np
import pytest

from feinsum import array, canonicalize, einsum, raise_kernel, retrieve
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.targets.host import EmbeddedCTarget
from feinsum.transforms import list_configurations
from feinsum.transforms.library import GENERIC, ROWWISE_ON_CPUS
from tests.cpus import CPUS, HOST
from tests.retrieval.facts import fact, surely_faster
from tests.retrieval.kernels import mixed, reduction
from tests.targets.host.kernels import source_of
from tests.transforms.support import EINSUMS, LOOPY_WARNINGS, generated, ragged_sizes

pytestmark = LOOPY_WARNINGS

REDUCTION = "mass"
ANY_ORDER = {
    "gcc": '#pragma GCC optimize ("associative-math"',
    "clang": "#pragma clang fp reassociate(on)",
}
WIDEST = '#pragma GCC target ("prefer-vector-width=512")'


def configured(transform, e, **hints):
    """The first configuration of a family with these hints."""
    first = next(list_configurations(transform, e))
    return transform.spec({**first.parameters, **hints})


def rowwise(e, **hints):
    return configured(ROWWISE_ON_CPUS, e, **hints)


HINTED = [
    (ROWWISE_ON_CPUS, {"sums": "any_order", "vectors": "widest"}),
    (GENERIC, {"vectors": "widest"}),
]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("transform", "hints"), HINTED)
def test_kernels_with_hints_are_right(transform, hints, cpu):
    """On every device of the processor, at sizes that no block divides."""
    assert_right_with_hints(transform, hints, cpu)


def assert_right_with_hints(transform, hints, cpu):
    e = EINSUMS[REDUCTION]
    case = generated(e)
    spec = configured(transform, e, **hints)
    case.assert_right(case.apply(spec), ragged_sizes(e), cpu)


@pytest.mark.parametrize("command", ["gcc", "clang"])
@pytest.mark.parametrize(("transform", "hints"), HINTED)
def test_every_compiler_takes_them(transform, hints, command, monkeypatch):
    """Those of another compiler are behind a condition; none is warned of."""
    if not shutil.which(command):
        pytest.skip(f"{command} is not installed")
    monkeypatch.setenv("FEINSUM_CC", f"{command} -Wall -Werror=unknown-pragmas")
    assert_right_with_hints(transform, hints, HOST)


def test_hints_stand_in_the_code():
    """Before all functions, and in none that was not to have them."""
    e = EINSUMS[REDUCTION]
    case = generated(e)

    def code(**hints):
        return source_of(case.apply(rowwise(e, **hints)))

    plain = code()
    for pragma in (*ANY_ORDER.values(), WIDEST):
        assert pragma not in plain
    for pragma in ANY_ORDER.values():
        found = code(sums="any_order")
        assert -1 < found.index(pragma) < found.index("_item(")
    assert WIDEST in code(vectors="widest")
    assert WIDEST not in code(sums="any_order")


def test_sums_of_integers_have_no_order():
    """Nor has what is no sum: there is nothing to choose."""
    ints = einsum("ij->i", array("a", ("n", 8), np.int64))
    product = einsum("i,i->i", array("a", "n"), array("b", "n"))
    for e in (ints, product):
        assert ROWWISE_ON_CPUS.get_space(e)["sums"] == ("in_order",)


def hinted_fact(e):
    e = canonicalize(e).einsum
    store = InMemoryStore()
    store.add(surely_faster(fact(e, rowwise(e, sums="any_order", vectors="widest"))))
    return store


def test_a_kernel_that_does_more_keeps_the_order_of_its_sums():
    """The hint holds for a whole kernel, and the rest was not measured with it."""
    example = reduction()
    alone = retrieve(example.kernel, database=hinted_fact(example.einsum))
    (kernel,) = alone.callables_table.values()
    assert ANY_ORDER["gcc"] in str(kernel.subkernel.preambles)
    whole = mixed()
    (nest,) = raise_kernel(whole).raised
    together = retrieve(whole, database=hinted_fact(nest.form.einsum))
    preambles = str(together["mixed"].preambles)
    assert ANY_ORDER["gcc"] not in preambles
    assert WIDEST in preambles


def test_code_for_others_has_the_hints():
    """They reach whoever compiles it."""
    e = EINSUMS[REDUCTION]
    unit = generated(e).apply(rowwise(e, sums="any_order", vectors="widest"))
    code = lp.generate_code_v2(EmbeddedCTarget.embedded(unit)).device_code()
    for pragma in (*ANY_ORDER.values(), WIDEST):
        assert pragma in code


def test_recipes_of_version_1_are_served():
    """They have no hints."""
    e = EINSUMS[REDUCTION]
    case = generated(e)
    index = rowwise(e).parameters["index"]
    spec = TransformSpec("rowwise", 1, {"index": index, "block": 8})
    case.assert_right(case.apply(spec), ragged_sizes(e), HOST)
