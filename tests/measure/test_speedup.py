"""Quick trials: sizes near those of the kernel, on verified arrays."""

from __future__ import annotations

import pytest

from feinsum.canonical import canonicalize
from feinsum.ir import array, einsum
from feinsum.measure import compile_kernel, count_footprint_bytes, open_device, verify
from feinsum.measure.cases import make_case
from feinsum.measure.judging import QUICK_BYTES, bind_pair, choose_quick_sizes
from feinsum.measure.trial import time_in_turns

MATVEC = einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))


@pytest.mark.parametrize("n", [1, 100, 130_000, 10**9, None])
def test_sizes_are_near_those_of_the_kernel_and_small(n):
    """Powers of two; one that is not known is as long as time allows."""
    sizes = choose_quick_sizes(MATVEC, {} if n is None else {"n": n})
    assert sizes["n"].bit_count() == 1
    assert count_footprint_bytes(MATVEC, sizes) <= QUICK_BYTES
    if n is not None and n < 100_000:
        assert n / 2 < sizes["n"] < 2 * n


def test_a_race_verifies_what_it_times():
    """Both kernels run at the sizes that are given, on the same arrays."""
    form = canonicalize(MATVEC).einsum
    (name,) = (x.name for x in form.size_params)
    opened = open_device()
    case = make_case(form, {name: 7})
    compiled = compile_kernel(case.t_unit, opened)
    kernel, baseline, tolerance = bind_pair(compiled, form, {name: 64}, opened)
    first_s = baseline.run()
    verify(kernel, baseline.read(), tolerance=2 * tolerance)
    least_s, baseline_s = time_in_turns(kernel, baseline, first_s)
    assert least_s > 0
    assert baseline_s > 0
