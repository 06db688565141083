"""How other libraries evaluate an einsum, as their users call them; all are
optional.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.experiments.terms import count_cores

Evaluate: TypeAlias = Callable[[], Any]
"""Evaluates the einsum, and returns when the result is complete."""


@dataclass(frozen=True)
class Rival:
    """A library that evaluates einsums.

    Attributes:
        package: the name to import.
        distribution: the name to install.
        prepare: takes the module, the subscripts and the operands. What it does once,
            such as finding a path or compiling, is not timed.
    """

    name: str
    package: str
    distribution: str
    prepare: Callable[[Any, str, Sequence[Any]], Evaluate]


def _prepare_numpy(numpy: Any, subscripts: str, operands: Sequence[Any]) -> Evaluate:
    path = numpy.einsum_path(subscripts, *operands, optimize="optimal")[0]
    return lambda: numpy.einsum(subscripts, *operands, optimize=path)


def _prepare_opt_einsum(
    opt_einsum: Any, subscripts: str, operands: Sequence[Any]
) -> Evaluate:
    shapes = [x.shape for x in operands]
    contract = opt_einsum.contract_expression(subscripts, *shapes, optimize="optimal")
    return lambda: contract(*operands)


def _prepare_torch(torch: Any, subscripts: str, operands: Sequence[Any]) -> Evaluate:
    torch.set_num_threads(count_cores())
    tensors = [torch.from_numpy(x) for x in operands]
    return torch.inference_mode()(lambda: torch.einsum(subscripts, *tensors))  # type: ignore[no-any-return]


def _prepare_jax(jax: Any, subscripts: str, operands: Sequence[Any]) -> Evaluate:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or "cpu")
    arrays = [jax.numpy.asarray(x) for x in operands]
    whole = jax.jit(lambda *xs: jax.numpy.einsum(subscripts, *xs))
    return lambda: jax.block_until_ready(whole(*arrays))


def _prepare_tblis(pytblis: Any, subscripts: str, operands: Sequence[Any]) -> Evaluate:
    pytblis.set_num_threads(count_cores())
    return lambda: pytblis.einsum(subscripts, *operands, optimize="optimal")


RIVALS = (
    Rival("numpy", "numpy", "numpy", _prepare_numpy),
    Rival("opt_einsum", "opt_einsum", "opt_einsum", _prepare_opt_einsum),
    Rival("torch", "torch", "torch", _prepare_torch),
    Rival("jax", "jax", "jax", _prepare_jax),
    Rival("tblis", "pytblis", "pytblis", _prepare_tblis),
)
"""In the order of the report, for those that are not installed."""
