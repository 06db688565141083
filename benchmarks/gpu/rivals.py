"""The rivals on a GPU: JAX, torch, CuPy and cuTENSOR.

Every rival evaluates the whole entry: its operands, which may be functions, and then
the einsum of each row. All multiply in the precision of the arrays, without TF32.
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
"""A function that evaluates an entry, and one that waits for its result."""


def time_call(call: Call, n: int) -> float:
    """Return the seconds per call of several calls, of which only the last is
    synchronized.
    """
    evaluate, finish = call
    start = perf_counter()
    for _ in range(n):
        last = evaluate()
    finish(last)
    return (perf_counter() - start) / n


def make_evaluation(workload: Any, xp: Any, einsum: Any) -> Callable[[Any], list[Any]]:
    """Return the entry as a function of the values, as users of array libraries write
    it.

    Args:
        workload: has the ``subscripts``, and ``rows`` of the operands' functions.
        xp: the library's module.
    """
    rows = [[_make_function(f) for f in row] for row in workload["rows"]]

    def evaluate(values: Any) -> list[Any]:
        return [
            einsum(workload["subscripts"], *(f.evaluate(xp, values) for f in row))
            for row in rows
        ]

    return evaluate


def _make_function(document: Mapping[str, Any]) -> Any:
    fields = {k: v for k, v in document.items() if k != "kind"}
    if "at" in fields:
        fields["at"] = tuple(fields["at"])
    return getattr(functions, document["kind"])(**fields)


def _convert_arrays(
    values: Mapping[str, Any], from_dlpack: Callable[[Any], Any]
) -> Any:
    """Return CuPy's arrays as those of another library, without copies; and scalars."""
    import cupy

    return {
        name: from_dlpack(value) if isinstance(value, cupy.ndarray) else float(value)
        for name, value in values.items()
    }


def _prepare_jax(workload: Any, values: Mapping[str, Any]) -> Call:
    """Return the whole evaluation, jitted; scalars are arguments.

    Products in single precision have full precision, as with other rivals: by default,
    JAX rounds operands on such GPUs.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    from jax import numpy as jnp

    if jax.default_backend() != "gpu":
        raise RuntimeError(f"JAX runs on {jax.default_backend()}")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    arguments = _convert_arrays(values, jnp.from_dlpack)
    compiled = jax.jit(make_evaluation(workload, jnp, jnp.einsum))
    return (lambda: compiled(arguments)), jax.block_until_ready


def _load_torch() -> Any:
    """Import torch with TF32 disabled."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def _prepare_torch(workload: Any, values: Mapping[str, Any]) -> Call:
    """Return the eager evaluation, with the faster of cuBLAS and cuBLASLt."""
    torch = _load_torch()
    arguments = _convert_arrays(values, torch.from_dlpack)
    evaluate = make_evaluation(workload, torch, torch.einsum)

    def run(library: str) -> Any:
        torch.backends.cuda.preferred_blas_library(library)
        return evaluate(arguments)

    without_gradients = torch.inference_mode()(run)
    calls = [
        (partial(without_gradients, library), lambda _: torch.cuda.synchronize())
        for library in ("cublas", "cublaslt")
    ]
    for call in calls:
        time_call(call, 1)
    return min(calls, key=lambda call: time_call(call, 2))


def _prepare_torch_compile(workload: Any, values: Mapping[str, Any]) -> Call:
    """Return the whole evaluation as one compiled function."""
    torch = _load_torch()
    arguments = _convert_arrays(values, torch.from_dlpack)
    evaluate = make_evaluation(workload, torch, torch.einsum)
    # a separate code object: torch compiles the same one for a few shapes only
    evaluate.__code__ = evaluate.__code__.replace()
    compiled = torch.compile(evaluate, fullgraph=True, dynamic=False)
    call = torch.inference_mode()(lambda: compiled(arguments))
    return call, lambda _: torch.cuda.synchronize()


def _prepare_cupy(
    accelerators: list[str], workload: Any, values: Mapping[str, Any]
) -> Call:
    """Return the pairwise evaluation by cuBLAS, or by the given accelerators."""
    import cupy

    # CuPy ignores missing libraries, and uses cuBLAS
    for name in accelerators:
        importlib.import_module(f"cupyx.{name}")
    core = importlib.import_module("cupy._core")

    def einsum(subscripts: str, *operands: Any) -> Any:
        return cupy.einsum(subscripts, *operands, optimize=True)

    evaluate = make_evaluation(workload, cupy, einsum)
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
    "jax": _prepare_jax,
    "torch": _prepare_torch,
    COMPILED: _prepare_torch_compile,
    "cupy": partial(_prepare_cupy, []),
    "cutensor": partial(_prepare_cupy, ["cutensor"]),
}


def list_versions() -> dict[str, str]:
    """Return the versions of the loaded libraries."""
    names = ("cupy", "jax", "torch")
    return {n: str(sys.modules[n].__version__) for n in names if n in sys.modules}
