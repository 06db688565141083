"""Figures of kernels for GPUs, without one."""

from __future__ import annotations

import pytest

from feinsum import array, canonicalize, einsum
from feinsum.errors import BuildError
from feinsum.ir import to_text
from feinsum.measure import open_device
from feinsum.measure.gpu_figures import get_start_figures
from feinsum.measure.judging import judge_recipe
from feinsum.measure.verdicts import VerificationRequest
from feinsum.transforms import find_applicable_transforms
from feinsum.transforms.gpu import GPU_POINTS
from tests.targets.cuda.stand_in import needs_nvrtc, stand_in
from tests.transforms.support import LOOPY_WARNINGS

__all__ = ["stand_in"]

pytestmark = [LOOPY_WARNINGS, needs_nvrtc]

PRODUCT = einsum(
    "ij,jk->ik", array("A", ("n", 64), "float32"), array("B", (64, 128), "float32")
)


OF_MANY_STARTS = {"gpu_elements", "gpu_operator"}
"""Families whose starts take long to compile, and show nothing that others do not."""


def test_every_start_has_figures(monkeypatch):
    """More sums in registers take more of them, larger tiles more shared memory."""

    def find(*args):
        found = find_applicable_transforms(*args)
        return [one for one in found if one.name not in OF_MANY_STARTS]

    monkeypatch.setattr("feinsum.measure.gpu_figures.find_applicable_transforms", find)
    found = get_start_figures(PRODUCT, "sm_80")
    assert {one.spec.name for one in found} >= {"gpu_product", "gpu_rows", "gpu_points"}
    assert all(0 < one.occupancy <= 1 for one in found)
    by_block = {
        (p["columns"], p["rows"]): one
        for one in found
        if one.spec.name == "gpu_product"
        for p in [one.spec.parameters]
    }
    assert by_block[8, 8].figures.registers > by_block[1, 1].figures.registers
    assert by_block[1, 1].shared_bytes == 2 * 2 * 16 * (16 + 4) * 4
    assert by_block[1, 1].n_items == 256


def test_an_architecture_that_is_none_is_refused():
    """Before anything is compiled, or by the compiler."""
    with pytest.raises(
        BuildError, match="'volta' is unknown; expected one such as 'sm_90'"
    ):
        get_start_figures(PRODUCT, "volta")
    with pytest.raises(BuildError, match="NVRTC"):
        get_start_figures(PRODUCT, "sm_10")


def test_what_spills_is_not_verified(stand_in, monkeypatch):
    """A recorded recipe that the compiler's figures rule out is never launched."""
    monkeypatch.setattr("feinsum.targets.cuda.figures.MAX_SPILLED", -1)
    opened = open_device("cuda")
    frame = to_text(canonicalize(PRODUCT).einsum)
    spec = GPU_POINTS.spec({"block": 64})
    question = VerificationRequest(frame, spec, opened.device.id, 1 << 32, {})
    with pytest.raises(BuildError, match="spills 0 bytes"):
        judge_recipe(question, opened)
    assert opened.session.launches == []
