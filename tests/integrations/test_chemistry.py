"""PySCF computes its einsums by feinsum, and finds the same energies."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import feinsum
from feinsum.errors import FeinsumError
from feinsum.integrations import use_in_pyscf

pytest.importorskip("pyscf")
from pyscf import gto, lib, mp, scf
from pyscf.cc import gintermediates, rccsd

WATER = "O 0 0 0; H 0 0.757 0.587; H 0 -0.757 0.587"


def energies():
    # threads of OpenMP spin while they wait, which takes far longer than all the work
    with lib.with_omp_threads(1):
        molecule = gto.M(atom=WATER, basis="6-31g", verbose=0)
        field = scf.RHF(molecule).run()
        clusters = rccsd.RCCSD(field)
        clusters.kernel()
        return field.e_tot, mp.MP2(field).run().e_tot, clusters.e_tot


@pytest.mark.usefixtures("usual_calls")
def test_energies_are_those_of_pyscf():
    """Of Hartree-Fock, MP2 and coupled cluster; the einsums were ours."""
    with feinsum.profile() as plain:
        expected = energies()
    with use_in_pyscf(), feinsum.profile() as used:
        found = energies()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)
    n_ours = [
        sum(call.n_calls for call in one.calls if call.caller == "feinsum")
        for one in (plain, used)
    ]
    assert n_ours[0] == 0 < n_ours[1]


def test_every_module_has_it_while_it_is_used():
    """Also those that imported it by name, and those imported meanwhile."""
    original = lib.einsum
    sys.modules.pop("pyscf.cc.rccsd_lambda", None)
    with use_in_pyscf():
        from pyscf.cc import rccsd_lambda

        assert gintermediates.einsum is lib.einsum is rccsd_lambda.einsum
        assert lib.einsum is not original
        # twice is once
        with use_in_pyscf():
            assert lib.einsum is not original
        assert gintermediates.einsum is not original
    assert gintermediates.einsum is lib.einsum is rccsd_lambda.einsum is original


def test_calls_with_options_are_pyscfs(monkeypatch):
    """``_contract`` names a function for products of two tensors."""
    # with pytblis, PySCF itself has no such option
    monkeypatch.setattr("pyscf.lib.numpy_helper.EINSUM_BACKEND", "numpy", raising=False)
    seen = []

    def contract(subscripts, *tensors, **_options):
        seen.append(subscripts)
        return np.einsum(subscripts, *tensors)

    A = np.ones((3, 4))
    with use_in_pyscf():
        assert lib.einsum("ij,kj->ik", A, A, optimize=True)[0, 0] == 4
        assert not seen
        assert lib.einsum("ij,kj->ik", A, A, _contract=contract)[0, 0] == 4
    assert seen == ["ij,kj->ik"]


def test_without_pyscf_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyscf", None)
    with pytest.raises(FeinsumError, match=r"needs pyscf.*pip install pyscf"):
        use_in_pyscf()
