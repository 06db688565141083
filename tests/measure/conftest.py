"""What the tests of measurement share: one real device, small kernels."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

from feinsum.measure import open_device
from tests.loopy_kernels import build_kernel


@pytest.fixture(scope="session")
def device():
    return open_device()


def matvec_kernel(dtype=np.float64, n_dofs=4):
    """``y[e,i] = sum(j, D[i,j] u[e,j])`` with a symbolic number of elements."""
    return build_kernel(
        f"{{[e,i,j]: 0<=e<N and 0<=i,j<{n_dofs}}}",
        "y[e,i] = sum(j, D[i,j]*u[e,j])",
        {"D": f"{n_dofs},{n_dofs}", "u,y": f"N,{n_dofs}"},
        dtype=dtype,
        name="matvec",
    )


def half_kernel(dtype=np.float64):
    """Writes the first half of ``y`` only."""
    return build_kernel(
        "{[i]: 0<=i<N}", "y[i] = 2*x[i]", {"x,y": "2*N"}, dtype=dtype, name="first_half"
    )


def two_launch_kernel():
    """``y`` is ``2 x`` read backwards; a global barrier makes two launches."""
    t_unit = build_kernel(
        "{[e,i]: 0<=e,i<20}",
        """
        <> z[i] = 2*x[i]        {id=first}
        ... gbarrier            {id=barrier, dep=first}
        y[e] = z[19-e] + z[e]   {dep=barrier}
        """,
        {"x,y": "20"},
        name="two_launches",
    )
    for iname in ("i", "e"):
        t_unit = lp.split_iname(t_unit, iname, 5, outer_tag="g.0", inner_tag="l.0")
    return lp.set_temporary_address_space(t_unit, "z", lp.AddressSpace.GLOBAL)


@pytest.fixture
def matvec():
    return matvec_kernel


@pytest.fixture
def half():
    return half_kernel


@pytest.fixture
def two_launches():
    return two_launch_kernel
