"""The rivals, each with operands evaluated as users of the library write it.

numpy, opt_einsum, TBLIS and eager torch evaluate each operand into a buffer that is
reused; results are written to reused memory if the library takes ``out``. JAX and
``torch.compile`` get the evaluation of all rows as one function, with scalars as
arguments, and fuse what they can. numpy and opt_einsum get a precomputed contraction
path. Every library uses one thread per core.
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
from benchmarks.experiments.terms import count_cores
from feinsum.measure.verification import get_poison_value

Evaluate = Callable[..., Any]


def _make_call(
    entry: Entry, evaluate: Callable[[Sequence[Any], int], Any], operands: _Operands
) -> Callable[[], list[Any]]:
    """Return a function that evaluates all rows; shared operands are evaluated once."""

    def call() -> list[Any]:
        now = operands.evaluate()
        return [
            evaluate([now[function] for function in row], k)
            for k, row in enumerate(entry.rows)
        ]

    return call


class _Operands:
    """The operands of an entry, in buffers that are reused."""

    def __init__(self, entry: Entry, values: Values, xp: Any, empty: Evaluate) -> None:
        self.xp, self.values = xp, values
        self.buffers: dict[Function, Any] = {
            function: None
            if isinstance(function, Plain)
            else empty(entry.get_shape(term))
            for function, term in entry.operands.items()
        }

    def evaluate(self) -> dict[Function, Any]:
        return {
            f: f.evaluate_into(self.xp, self.values, buffer)
            for f, buffer in self.buffers.items()
        }


def _allocate_outputs(entry: Entry) -> list[np.ndarray]:
    """Allocate the results, poisoned so that stale values are noticed."""
    dtype = np.dtype(entry.dtype)
    shape = entry.get_shape(entry.output)
    return [np.full(shape, get_poison_value(dtype), dtype) for _ in entry.rows]


def _list_shapes(entry: Entry) -> list[tuple[int, ...]]:
    return [entry.get_shape(term) for term in entry.terms]


class Numpy:
    """``numpy.einsum``, pairwise, with BLAS where applicable."""

    name, package = "numpy", "numpy"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        _check_steps(entry)
        outs = _allocate_outputs(entry)
        path = _find_pairwise_path(entry)

        def evaluate(operands: Sequence[Any], k: int) -> Any:
            return np.einsum(entry.subscripts, *operands, out=outs[k], optimize=path)

        return Called(
            _make_call(entry, evaluate, _Operands(entry, values, np, np.empty)),
            note=str(path[1:]),
        )


def _find_pairwise_path(entry: Entry) -> list[Any]:
    """Return the path with the fewest operations, without a limit of memory.

    By default, numpy contracts three and more operands at once where an intermediate
    would exceed the largest operand; TBLIS hands such steps back to numpy.
    """
    virtual = [np.broadcast_to(0.0, shape) for shape in _list_shapes(entry)]
    unlimited = ("optimal", 2**62)
    path = np.einsum_path(entry.subscripts, *virtual, optimize=unlimited)[0]
    return list(path)


def _check_steps(entry: Entry) -> None:
    """Refuse an entry with batch indices, for which numpy does not use BLAS.

    It then sums entry by entry, strided, which takes minutes for some.

    Raises:
        NotApplicableError: with the number of operations.
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
    """opt_einsum on numpy arrays."""

    name, package = "opt_einsum", "opt_einsum"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        import opt_einsum

        outs = _allocate_outputs(entry)
        shapes = _list_shapes(entry)
        contract = opt_einsum.contract_expression(
            entry.subscripts, *shapes, optimize="optimal"
        )

        def evaluate(operands: Sequence[Any], k: int) -> Any:
            return contract(*operands, out=outs[k])

        operands = _Operands(entry, values, np, np.empty)
        return Called(_make_call(entry, evaluate, operands))


class Tblis:
    """TBLIS, which contracts without transposition in memory."""

    name, package = "tblis", "pytblis"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        import pytblis

        pytblis.set_num_threads(count_cores())
        outs = _allocate_outputs(entry)
        path = _find_pairwise_path(entry)

        def evaluate(operands: Sequence[Any], k: int) -> Any:
            return pytblis.einsum(
                entry.subscripts, *operands, out=outs[k], optimize=path
            )

        operands = _Operands(entry, values, np, np.empty)
        return Called(_make_call(entry, evaluate, operands), note=str(path[1:]))


class Torch:
    """Eager torch, with opt_einsum for the path; results are new arrays."""

    name, package = "torch", "torch"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        torch = _load_torch()
        tensors = _make_tensors(entry, values)

        def empty(shape: Sequence[int]) -> Any:
            return torch.empty(shape, dtype=getattr(torch, entry.dtype))

        def evaluate(operands: Sequence[Any], k: int) -> Any:
            return torch.einsum(entry.subscripts, *operands)

        operands = _Operands(entry, {**tensors, **entry.scalars}, torch, empty)
        call = _make_call(entry, evaluate, operands)
        return Called(torch.inference_mode()(call))


class TorchCompile:
    """The whole evaluation by ``torch.compile``; scalars are tensors of rank 0."""

    name, package = "torch.compile", "torch"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        torch = _load_torch()
        scalars = {
            name: torch.tensor(value, dtype=torch.float64)
            for name, value in entry.scalars.items()
        }
        arguments = {**_make_tensors(entry, values), **scalars}
        jitted = torch.compile(
            make_evaluation(entry, torch, torch.einsum), fullgraph=True, dynamic=False
        )
        return Called(torch.inference_mode()(lambda: jitted(arguments)))


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
        jitted = jax.jit(make_evaluation(entry, jnp, jnp.einsum))
        return Called(
            lambda: jitted(arguments),
            finish=jax.block_until_ready,
            note=f"on {jax.default_backend()}",
        )


def make_evaluation(
    entry: Entry, xp: Any, einsum: Evaluate
) -> Callable[[Values], list]:
    """Return the entry as a function of the values, as users of array libraries write
    it.
    """

    def evaluate(values: Values) -> list[Any]:
        return [
            einsum(entry.subscripts, *(f.evaluate(xp, values) for f in row))
            for row in entry.rows
        ]

    return evaluate


def _load_torch() -> Any:
    import torch

    torch.set_num_threads(count_cores())
    return torch


def _make_tensors(entry: Entry, values: Values) -> dict[str, Any]:
    """Return tensors that share the memory of the arrays."""
    torch = _load_torch()
    return {name: torch.from_numpy(values[name]) for name in entry.arrays}


RIVALS: tuple[Contender, ...] = (
    Jax(),
    Torch(),
    TorchCompile(),
    Numpy(),
    OptEinsum(),
    Tblis(),
)
