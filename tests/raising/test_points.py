"""The value of an index in a nest: an iname, or an entry that a loop finds."""

from __future__ import annotations

from dataclasses import replace

import loopy as lp
import numpy as np
import pytest
from constantdict import constantdict
from pymbolic import parse, var

from feinsum import canonicalize, raise_kernel
from feinsum.errors import TransformError
from feinsum.raising import single_nest
from feinsum.transforms.primitives import begin


def matvec():
    return lp.make_kernel(
        "{[i,j]: 0<=i<n and 0<=j<7}",
        "y[i] = sum(j, A[i,j]*x[j])",
        [
            lp.GlobalArg("A", np.float64, shape="n,7"),
            lp.GlobalArg("x", np.float64, shape="7"),
            lp.GlobalArg("y", np.float64, shape="n"),
            lp.ValueArg("n", np.int32),
        ],
        lang_version=(2018, 2),
    )


def test_indices_of_a_dense_nest_are_inames():
    """Each index has the value of its iname, under any names."""
    nest = single_nest(raise_kernel(matvec())).nest
    assert nest.points == {"i": var("i"), "j": var("j")}
    canonical = nest.relabeled(canonicalize(nest.einsum).relabeling)
    assert canonical.points == {"a": var("i"), "b": var("j")}
    assert canonical.inames == {"a": "i", "b": "j"}
    assert canonical.loops == {"i", "j"}


def test_an_index_can_be_an_entry_that_a_loop_finds():
    """Its names are known; families whose loops run over indices refuse it by name."""
    raised = raise_kernel(matvec())
    nest = single_nest(raised).nest
    points = constantdict({"i": var("i"), "j": parse("idx[p]")})
    sparse = replace(nest, points=points)
    assert sparse.loops == {"i", "idx", "p"}
    renamed = sparse.relabeled(canonicalize(nest.einsum).relabeling)
    assert renamed.points == {"a": var("i"), "b": parse("idx[p]")}
    with pytest.raises(TransformError, match=r"index 'j' .* is idx\[p\]"):
        begin(raised.t_unit, sparse)
