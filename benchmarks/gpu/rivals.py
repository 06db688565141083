"""What contests and calls on a GPU are compared with: JAX, torch, CuPy and cuTENSOR.

Every rival evaluates the whole entry: its operands, which may be functions, and then
the einsum of each row. All multiply in the precision of the arrays: without TF32.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from benchmarks.experiments import functions

COMPILED = "torch.compile"

Call = tuple[Callable[[], Any], Callable[[Any], Any]]
"""Evaluates an entry, and waits for the result."""


def seconds_of(call: Call, n: int) -> float:
    """Of each of several calls in a row, of which only the last one is waited for."""
    evaluate, finish = call
    start = perf_counter()
    for _ in range(n):
        last = evaluate()
    finish(last)
    return (perf_counter() - start) / n


def evaluation(workload: Any, xp: Any, einsum: Any) -> Callable[[Any], list[Any]]:
    """The entry as a user writes it in an array library: a function of the values.

    Args:
        workload: has the ``subscripts``, and ``rows`` of the operands' functions.
        xp: the library's module.
    """
    rows = [[_function(f) for f in row] for row in workload["rows"]]

    def evaluate(values: Any) -> list[Any]:
        return [
            einsum(workload["subscripts"], *(f.fresh(xp, values) for f in row))
            for row in rows
        ]

    return evaluate


def _function(document: Mapping[str, Any]) -> Any:
    fields = {k: v for k, v in document.items() if k != "kind"}
    if "at" in fields:
        fields["at"] = tuple(fields["at"])
    return getattr(functions, document["kind"])(**fields)


def _given(values: Mapping[str, Any], from_dlpack: Callable[[Any], Any]) -> Any:
    """CuPy's arrays as those of another library, in the same memory; scalars."""
    import cupy

    return {
        name: from_dlpack(value) if isinstance(value, cupy.ndarray) else float(value)
        for name, value in values.items()
    }


def _jax(workload: Any, values: Mapping[str, Any]) -> Call:
    """The whole evaluation, jitted; scalars are arguments.

    Products in single precision have its full precision, as with the others: by
    default, JAX rounds their operands on such GPUs.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    from jax import numpy as jnp

    if jax.default_backend() != "gpu":
        raise RuntimeError(f"JAX runs on {jax.default_backend()}")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    given = _given(values, jnp.from_dlpack)
    whole = jax.jit(evaluation(workload, jnp, jnp.einsum))
    return (lambda: whole(given)), jax.block_until_ready


def _load_torch() -> Any:
    """Import torch, which then multiplies without TF32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def _torch(workload: Any, values: Mapping[str, Any]) -> Call:
    """Eager, with opt_einsum for the path, and the faster of cuBLAS and cuBLASLt."""
    torch = _load_torch()
    given = _given(values, torch.from_dlpack)
    evaluate = evaluation(workload, torch, torch.einsum)

    def run(library: str) -> Any:
        torch.backends.cuda.preferred_blas_library(library)
        return evaluate(given)

    without_gradients = torch.inference_mode()(run)
    calls = [
        (partial(without_gradients, library), lambda _: torch.cuda.synchronize())
        for library in ("cublas", "cublaslt")
    ]
    for call in calls:
        seconds_of(call, 1)
    return min(calls, key=lambda call: seconds_of(call, 2))


def _torch_compile(workload: Any, values: Mapping[str, Any]) -> Call:
    """The whole evaluation as one function."""
    torch = _load_torch()
    given = _given(values, torch.from_dlpack)
    evaluate = evaluation(workload, torch, torch.einsum)
    # code of its own: one code is compiled for a few shapes, and then refused
    evaluate.__code__ = evaluate.__code__.replace()
    whole = torch.compile(evaluate, fullgraph=True, dynamic=False)
    call = torch.inference_mode()(lambda: whole(given))
    return call, lambda _: torch.cuda.synchronize()


def _cupy(accelerators: list[str], workload: Any, values: Mapping[str, Any]) -> Call:
    """``cupy.einsum``, pairwise, by cuBLAS or by the accelerators that are named."""
    import cupy

    # missing libraries are ignored there, and cuBLAS takes their place
    for name in accelerators:
        importlib.import_module(f"cupyx.{name}")
    core = importlib.import_module("cupy._core")

    def einsum(subscripts: str, *operands: Any) -> Any:
        return cupy.einsum(subscripts, *operands, optimize=True)

    evaluate = evaluation(workload, cupy, einsum)
    stream = cupy.cuda.get_current_stream()

    def run() -> Any:
        usual = core.get_routine_accelerators()
        core.set_routine_accelerators(accelerators)
        try:
            return evaluate(values)
        finally:
            core.set_routine_accelerators(usual)

    return run, lambda _: stream.synchronize()


RIVALS = {
    "jax": _jax,
    "torch": _torch,
    COMPILED: _torch_compile,
    "cupy": partial(_cupy, []),
    "cutensor": partial(_cupy, ["cutensor"]),
}


def list_versions() -> dict[str, str]:
    """The versions of the libraries that were loaded."""
    names = ("cupy", "jax", "torch")
    return {n: str(sys.modules[n].__version__) for n in names if n in sys.modules}
