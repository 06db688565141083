"""Kernels of several statements that share arrays: what is retrieved builds and is
right, whatever the names and the index lists.
"""

from __future__ import annotations

import re

import loopy as lp
import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from feinsum import retrieve
from feinsum.raising import raise_kernel
from feinsum.records import InMemoryStore
from feinsum.targets.host import HostCTarget
from feinsum.transforms import applicable_transforms, configurations
from tests.loopy_kernels import build_kernel
from tests.retrieval.facts import fact
from tests.retrieval.kernels import texts
from tests.retrieval.test_whole_kernels import assert_same_results, facts_for

pytestmark = pytest.mark.filterwarnings("ignore::feinsum.FeinsumWarning")


def kernel_of(statements: str, *rules: str) -> lp.TranslationUnit:
    """Statements over vectors a, c of n entries, b, d of 4, and matrices A, B of 4."""
    lines = [line for line in statements.split("\n") if line.strip()]
    results = {line.split("[")[0].strip(): line for line in lines}
    shapes = {"a": ("n",), "c": ("n",), "b": (4,), "d": (4,), "A": ("n", 4)}
    shapes["B"] = (4, 4)
    for name, line in results.items():
        subscript = line.split("[")[1].split("]")[0].split(",")
        shapes[name] = tuple("n" if i.strip() == "e" else 4 for i in subscript)
    short = ", ".join(i for i in "jkqrstxy" if re.search(rf"\b{i}\b", statements))
    bounds = f"0 <= e < n and 0 <= {short} < 4" if short else "0 <= e < n"
    inames = f"e, {short}" if short else "e"
    return build_kernel(
        f"[n] -> {{[{inames}]: {bounds}}}",
        [*rules, *lines],
        texts(shapes),
        assumptions="n >= 1",
        target=HostCTarget(),
    )


SHARED = {
    "a vector, alone and repeated": "u[e,j] = b[j]*a[e]\n v[e,j] = a[e]",
    "repeated along two": "u[e,j] = b[j]*a[e]\n v[e,j] = a[e]\n w[e,j,k] = a[e]",
    "summed and repeated": "u[e] = sum(q, A[e,q]*b[q])\n v[e,j] = b[j]",
    "names of rules and arrays of ours": (
        "a_rule[e,j] = b[j]*a[e]\n product[e,j] = a[e]\n tile[e] = 2.0*a[e]*c[e]"
    ),
}


@pytest.mark.parametrize("statements", SHARED.values(), ids=SHARED)
def test_statements_that_share_arrays(statements):
    """All of them with recipes: the result builds, and computes the same."""
    t_unit = kernel_of(statements)
    result = retrieve(t_unit, database=facts_for(t_unit), verify=False)
    assert result is not t_unit
    assert_same_results(t_unit, result, {"n": 37})


@st.composite
def _statements(draw):
    """Lines of two or three statements; each reads the arrays by indices of its own."""
    lines = []
    # Loopy has no schedule of the given kernel where statements share indices that nest
    # differently: j and k are prefixes, and sums have indices of their own
    for name, sums in [("u", "qr"), ("v", "st"), ("w", "xy")][
        : draw(st.integers(2, 3))
    ]:
        free = ["e", "j", "k"][: draw(st.integers(1, 3))]
        summed = [*sums[: draw(st.integers(0, 2))]]
        short = st.sampled_from([*free[1:], *summed] or ["0"])
        factor = st.one_of(
            st.sampled_from(["a[e]", "c[e]"]),
            st.builds("{}[{}]".format, st.sampled_from("bd"), short),
            st.builds("A[e,{}]".format, short),
            st.builds("B[{},{}]".format, short, short),
        )
        product = "*".join(draw(st.lists(factor, min_size=1, max_size=4)))
        summed = [q for q in summed if q in product]
        right = f"sum(({', '.join(summed)}), {product})" if summed else product
        lines.append(f"{name}[{','.join(free)}] = {right}")
    return "\n".join(lines)


@settings(max_examples=25, deadline=None)
@given(statements=_statements(), data=st.data())
def test_any_statements_that_share_arrays(statements, data):
    """With any recipe for each of them: the result builds, and computes the same."""
    note(statements)
    t_unit = kernel_of(statements)
    store = InMemoryStore()
    for nest in raise_kernel(t_unit).raised:
        einsum = nest.form.einsum
        transforms = {str(t.name): t for t in applicable_transforms(einsum)}
        transform = transforms[data.draw(st.sampled_from([*transforms]))]
        for spec in configurations(transform, einsum):
            store.add(fact(einsum, spec))
            break
    result = retrieve(t_unit, database=store, verify=False)
    assert_same_results(t_unit, result, {"n": 37})


@pytest.mark.parametrize("rule", ["f(x, y) := a[x]", "a_rule(x, y) := a[x]"])
def test_rules_of_the_user_with_the_text_of_ours(rule):
    """A rule of the user reads what a rule of ours reads, with other arguments."""
    name = rule.split("(")[0]
    call = f"{name}(e, j)" if "y" in rule else f"{name}(e)"
    t_unit = kernel_of(f"u[e,j] = b[j]*a[e]\n v[e,j] = b[j]*{call}", rule)
    result = retrieve(t_unit, database=facts_for(t_unit), verify=False)
    assert_same_results(t_unit, result, {"n": 37})


def test_one_of_the_statements():
    """The others keep their loops, and what they read."""
    t_unit = kernel_of(SHARED["a vector, alone and repeated"])
    store = facts_for(t_unit)
    result = retrieve(t_unit, database=store, verify=False, instructions="id:insn")
    assert_same_results(t_unit, result, {"n": 37})


@pytest.mark.filterwarnings("ignore:.*GCCToolchain:DeprecationWarning")
def test_an_argument_that_nothing_reads():
    """The result takes it as the given kernel does; Loopy's own executor of C does not
    survive the call.
    """
    t_unit = build_kernel(
        "[n] -> {[e, j]: 0 <= e < n and 0 <= j < 4}",
        "u[e,j] = 2.0*pow(a[e,j], 1.4)",
        {"z,a,u": "n,4"},
        target=lp.ExecutableCTarget(),
    )
    result = retrieve(t_unit, database=facts_for(t_unit), verify=False)
    assert result is not t_unit
    a = np.random.default_rng(0).random((37, 4))
    _, (u,) = result.executor()(z=np.zeros((37, 4)), a=a, n=37)
    np.testing.assert_allclose(u, 2.0 * a**1.4)
