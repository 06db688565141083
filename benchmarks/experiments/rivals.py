"""The rivals: each evaluates the operand functions as its users would write them.

numpy, opt_einsum, TBLIS and eager torch evaluate a function into a temporary that is
kept; results go to memory that is kept where the library takes ``out``. JAX and
``torch.compile`` get the whole evaluation of all rows as one function, with the scalars
as arguments, and fuse what they can. numpy and opt_einsum get a path of contraction
that was found beforehand. Every library uses one thread per core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.experiments.contender import (
    Called,
    Contender,
    NotApplicableError,
    Ready,
)
from benchmarks.experiments.entries import Entry
from benchmarks.experiments.functions import Function, Plain, Values
from benchmarks.experiments.terms import n_cores
from feinsum.measure.verification import get_poison_value

Evaluate = Callable[..., Any]


def _rows(
    entry: Entry, evaluate: Callable[[Sequence[Any], int], Any], operands: _Operands
) -> Callable[[], list[Any]]:
    """Evaluate row after row; an operand that rows share is evaluated once."""

    def call() -> list[Any]:
        now = operands.evaluate()
        return [
            evaluate([now[function] for function in row], k)
            for k, row in enumerate(entry.rows)
        ]

    return call


class _Operands:
    """The operands of an entry in memory that is kept."""

    def __init__(self, entry: Entry, values: Values, xp: Any, empty: Evaluate) -> None:
        self.xp, self.values = xp, values
        self.places: dict[Function, Any] = {
            function: None if isinstance(function, Plain) else empty(entry.shape(term))
            for function, term in entry.operands.items()
        }

    def evaluate(self) -> dict[Function, Any]:
        return {f: f.into(self.xp, self.values, at) for f, at in self.places.items()}


def _outputs(entry: Entry) -> list[np.ndarray]:
    """Memory for the results, so filled that no old result passes for a new one."""
    dtype = np.dtype(entry.dtype)
    shape = entry.shape(entry.output)
    return [np.full(shape, get_poison_value(dtype), dtype) for _ in entry.rows]


def _shapes(entry: Entry) -> list[tuple[int, ...]]:
    return [entry.shape(term) for term in entry.terms]


class Numpy:
    """``numpy.einsum``, pairwise, by BLAS where that fits."""

    name, package = "numpy", "numpy"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        _check_steps(entry)
        outs = _outputs(entry)
        path = _pairwise_path(entry)

        def evaluate(operands: Sequence[Any], k: int) -> Any:
            return np.einsum(entry.subscripts, *operands, out=outs[k], optimize=path)

        return Called(
            _rows(entry, evaluate, _Operands(entry, values, np, np.empty)),
            note=str(path[1:]),
        )


def _pairwise_path(entry: Entry) -> list[Any]:
    """The path with the fewest operations, however large its intermediates.

    By default, numpy contracts three and more operands at once where an intermediate
    would exceed the largest operand; TBLIS hands such steps back to numpy.
    """
    virtual = [np.broadcast_to(0.0, shape) for shape in _shapes(entry)]
    unlimited = ("optimal", 2**62)
    path = np.einsum_path(entry.subscripts, *virtual, optimize=unlimited)[0]
    return list(path)


def _check_steps(entry: Entry) -> None:
    """Numpy hands no product with an index of its own batch to BLAS, and then it adds
    up entry by entry, strided: some take minutes.

    Raises:
        NotApplicableError: saying how many operations that would be.
    """
    if len(entry.terms) < 3 or entry.flops < SLOW_OPERATIONS:
        return
    output = set(entry.output)
    shared = [i for i in output if sum(i in term for term in entry.terms) > 1]
    if shared:
        raise NotApplicableError(
            f"{entry.flops:.1e} operations without BLAS: {shared[0]!r} is in the "
            "output and in several operands"
        )


SLOW_OPERATIONS = 1e9


class OptEinsum:
    """opt_einsum's contraction of numpy arrays."""

    name, package = "opt_einsum", "opt_einsum"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        import opt_einsum

        outs = _outputs(entry)
        shapes = _shapes(entry)
        contract = opt_einsum.contract_expression(
            entry.subscripts, *shapes, optimize="optimal"
        )

        def evaluate(operands: Sequence[Any], k: int) -> Any:
            return contract(*operands, out=outs[k])

        operands = _Operands(entry, values, np, np.empty)
        return Called(_rows(entry, evaluate, operands))


class Tblis:
    """TBLIS, which contracts without transposing in memory."""

    name, package = "tblis", "pytblis"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        import pytblis

        pytblis.set_num_threads(n_cores())
        outs = _outputs(entry)
        path = _pairwise_path(entry)

        def evaluate(operands: Sequence[Any], k: int) -> Any:
            return pytblis.einsum(
                entry.subscripts, *operands, out=outs[k], optimize=path
            )

        operands = _Operands(entry, values, np, np.empty)
        return Called(_rows(entry, evaluate, operands), note=str(path[1:]))


class Torch:
    """Eager torch, with opt_einsum for the path; the results are new arrays."""

    name, package = "torch", "torch"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        torch = _torch()
        tensors = _tensors(entry, values)

        def empty(shape: Sequence[int]) -> Any:
            return torch.empty(shape, dtype=getattr(torch, entry.dtype))

        def evaluate(operands: Sequence[Any], k: int) -> Any:
            return torch.einsum(entry.subscripts, *operands)

        operands = _Operands(entry, {**tensors, **entry.scalars}, torch, empty)
        call = _rows(entry, evaluate, operands)
        return Called(torch.inference_mode()(call))


class TorchCompile:
    """The whole evaluation by ``torch.compile``; the scalars are tensors of rank 0."""

    name, package = "torch.compile", "torch"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        torch = _torch()
        scalars = {
            name: torch.tensor(value, dtype=torch.float64)
            for name, value in entry.scalars.items()
        }
        arguments = {**_tensors(entry, values), **scalars}
        whole = torch.compile(
            evaluation(entry, torch, torch.einsum), fullgraph=True, dynamic=False
        )
        return Called(torch.inference_mode()(lambda: whole(arguments)))


class Jax:
    """The whole evaluation by ``jax.jit``, in double precision.

    On the CPU, or on the first platform that the variable ``JAX_PLATFORMS`` names.
    """

    name, package = "jax", "jax"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        import jax
        from jax import numpy as jnp

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or "cpu")
        arguments = {name: jnp.asarray(value) for name, value in values.items()}
        whole = jax.jit(evaluation(entry, jnp, jnp.einsum))
        return Called(
            lambda: whole(arguments),
            finish=jax.block_until_ready,
            note=f"on {jax.default_backend()}",
        )


def evaluation(entry: Entry, xp: Any, einsum: Evaluate) -> Callable[[Values], list]:
    """The entry as a user writes it in an array library: a function of the values."""

    def evaluate(values: Values) -> list[Any]:
        return [
            einsum(entry.subscripts, *(f.fresh(xp, values) for f in row))
            for row in entry.rows
        ]

    return evaluate


def _torch() -> Any:
    import torch

    torch.set_num_threads(n_cores())
    return torch


def _tensors(entry: Entry, values: Values) -> dict[str, Any]:
    """Tensors that share the memory of the arrays."""
    torch = _torch()
    return {name: torch.from_numpy(values[name]) for name in entry.arrays}


RIVALS: tuple[Contender, ...] = (
    Jax(),
    Torch(),
    TorchCompile(),
    Numpy(),
    OptEinsum(),
    Tblis(),
)
