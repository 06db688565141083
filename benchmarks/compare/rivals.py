"""Other libraries, called as their users call them; none is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Evaluate: TypeAlias = Callable[[], Any]
"""Evaluates the einsum; its result is there when it returns."""


@dataclass(frozen=True)
class Rival:
    """A library that evaluates einsums.

    Attributes:
        package: what is imported.
        distribution: what is installed.
        prepare: gets the module, subscripts of letters, and the operands. What it does
            once, such as finding a path or compiling, is not timed.
    """

    name: str
    package: str
    distribution: str
    prepare: Callable[[Any, str, Sequence[Any]], Evaluate]


def _numpy(numpy: Any, subscripts: str, operands: Sequence[Any]) -> Evaluate:
    path = numpy.einsum_path(subscripts, *operands, optimize="optimal")[0]
    return lambda: numpy.einsum(subscripts, *operands, optimize=path)


def _opt_einsum(opt_einsum: Any, subscripts: str, operands: Sequence[Any]) -> Evaluate:
    shapes = [x.shape for x in operands]
    contract = opt_einsum.contract_expression(subscripts, *shapes, optimize="optimal")
    return lambda: contract(*operands)


def _torch(torch: Any, subscripts: str, operands: Sequence[Any]) -> Evaluate:
    torch.set_num_threads(_n_cores())
    tensors = [torch.from_numpy(x) for x in operands]
    return torch.inference_mode()(lambda: torch.einsum(subscripts, *tensors))  # type: ignore[no-any-return]


def _jax(jax: Any, subscripts: str, operands: Sequence[Any]) -> Evaluate:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or "cpu")
    arrays = [jax.numpy.asarray(x) for x in operands]
    whole = jax.jit(lambda *xs: jax.numpy.einsum(subscripts, *xs))
    return lambda: jax.block_until_ready(whole(*arrays))


def _tblis(pytblis: Any, subscripts: str, operands: Sequence[Any]) -> Evaluate:
    pytblis.set_num_threads(_n_cores())
    return lambda: pytblis.einsum(subscripts, *operands, optimize="optimal")


def _n_cores() -> int:
    return len(os.sched_getaffinity(0))


RIVALS = (
    Rival("numpy", "numpy", "numpy", _numpy),
    Rival("opt_einsum", "opt_einsum", "opt_einsum", _opt_einsum),
    Rival("torch", "torch", "torch", _torch),
    Rival("jax", "jax", "jax", _jax),
    Rival("tblis", "pytblis", "pytblis", _tblis),
)
"""In the order in which they are listed where they are not installed."""
