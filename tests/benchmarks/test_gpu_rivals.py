"""Rivals on a GPU, with numpy in the place of torch and CuPy."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.gpu import rivals

WORKLOAD = {
    "subscripts": "ij,jk->ik",
    "rows": [[
        {"kind": "Affine", "name": "A", "scale": "s", "shift": "t", "at": (2, 1)},
        {"kind": "Average", "name": "B"},
    ]],
}  # fmt: skip
VALUES = {"A": np.eye(3), "B_n": np.ones((3, 2)), "B_p": np.ones((3, 2)),
          "s": 2.0, "t": 1.0}  # fmt: skip
EXPECTED = (2 * np.eye(3) + 1) @ np.ones((3, 2))


@pytest.fixture
def libraries(monkeypatch):
    """What was set before each einsum: torch's BLAS, CuPy's accelerators."""
    seen, state = [], {"blas": None, "accelerators": ["usual"]}

    def einsum(subscripts, *operands, **_):
        seen.append(dict(state))
        return np.einsum(subscripts, *operands)

    blas = SimpleNamespace(
        matmul=SimpleNamespace(allow_tf32=True),
        preferred_blas_library=lambda name: state.update(blas=name),
    )
    torch = SimpleNamespace(
        __version__="2", einsum=einsum, from_dlpack=np.from_dlpack,
        backends=SimpleNamespace(cuda=blas),
        compile=lambda function, **_: function,
        cuda=SimpleNamespace(synchronize=lambda: None),
        inference_mode=lambda: lambda function: function,
    )  # fmt: skip
    core = SimpleNamespace(
        get_routine_accelerators=lambda: state["accelerators"],
        set_routine_accelerators=lambda names: state.update(accelerators=names),
    )
    stream = SimpleNamespace(synchronize=lambda: None)
    cupy = SimpleNamespace(
        __version__="14", ndarray=np.ndarray, einsum=einsum,
        cuda=SimpleNamespace(get_current_stream=lambda: stream),
    )  # fmt: skip
    modules = {"torch": torch, "cupy": cupy, "cupy._core": core, "cupyx.cutensor": core}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(seen=seen, state=state, torch=torch)


@pytest.mark.parametrize("name", [name for name in rivals.RIVALS if name != "jax"])
def test_a_rival_evaluates_the_whole_entry(libraries, name):
    """Functions of operands, too."""
    call, finish = rivals.RIVALS[name](WORKLOAD, VALUES)
    (result,) = call()
    finish(result)
    assert np.array_equal(result, EXPECTED)


def test_torch_takes_the_faster_of_its_libraries(libraries, monkeypatch):
    """And multiplies without TF32."""
    monkeypatch.setattr(
        rivals, "time_call", lambda call, n: "lt" not in call[0].args[0]
    )
    call, _ = rivals.RIVALS["torch"](WORKLOAD, VALUES)
    call()
    assert libraries.seen[-1]["blas"] == "cublaslt"
    assert libraries.torch.backends.cuda.matmul.allow_tf32 is False


@pytest.mark.parametrize(("name", "set_to"), [("cupy", []), ("cutensor", ["cutensor"])])
def test_cutensor_is_a_rival_of_its_own(libraries, name, set_to):
    """What others use, such as our calls, stays as it is."""
    call, _ = rivals.RIVALS[name](WORKLOAD, VALUES)
    call()
    assert libraries.seen[-1]["accelerators"] == set_to
    assert libraries.state["accelerators"] == ["usual"]


def test_cutensor_has_to_be_there(libraries, monkeypatch):
    """CuPy itself would compute without it."""
    monkeypatch.setitem(sys.modules, "cupyx.cutensor", None)
    with pytest.raises(ImportError):
        rivals.RIVALS["cutensor"](WORKLOAD, VALUES)


def test_versions_are_those_of_what_was_loaded(libraries, monkeypatch):
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    assert rivals.list_versions() == {"cupy": "14", "torch": "2"}
