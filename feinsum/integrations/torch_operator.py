"""``torch_einsum``: einsums of tensors that torch differentiates, batches and compiles.

:func:`feinsum.einsum` computes at once, so it refuses tensors whose operations torch
records. :func:`torch_einsum` has a rule for each transform of torch::

    eager, host and CUDA    feinsum.einsum
    backward                an einsum per operand that needs a gradient
    forward mode            an einsum per operand that has a tangent
    torch.vmap              one einsum with one more index
    torch.compile           the operator feinsum::einsum, whose shape is known; it has
                            the same rules for backward and torch.vmap

The rules call :func:`torch_einsum` again, so that derivatives have derivatives.
A compiled program may have ``torch.vmap`` of it, but not ``torch.func.grad``, which
torch does not support for operators of ``torch.library``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from feinsum.calling import einsum
from feinsum.calling.terms import as_subscripts
from feinsum.errors import FeinsumError, InvalidEinsumError, InvalidTypeError
from feinsum.integrations.multilinear import (
    batch_subscripts,
    infer_result_shape,
    transpose_einsum,
)
from feinsum.libraries import resolve_entries

# This module is loaded on the first use of its function. It registers the operator at
# once, because torch's compiler cannot trace the registration.
try:
    import torch
except ImportError:  # the first call reports it
    torch = None
Function: Any = object if torch is None else torch.autograd.Function


def torch_einsum(*arguments: Any) -> Any:
    """Evaluate an einsum of tensors; torch may differentiate, batch and compile it.

    Args:
        arguments: subscripts and tensors, or tensors alternating with index lists, as
            for :func:`torch.einsum`. All tensors are on the host, or all on one CUDA
            GPU; their dtypes are promoted as torch does, and ``torch.autocast`` has no
            effect.

    Returns:
        A tensor in C order, which requires a gradient if an operand does.

    Raises:
        FeinsumError: if torch is not installed.
        InvalidTypeError: for an operand that is not a tensor.
        InvalidEinsumError: as :func:`feinsum.call_einsum`.

    >>> import pytest
    >>> torch = pytest.importorskip("torch")
    >>> A = torch.eye(2, requires_grad=True)
    >>> torch_einsum("ij,j->", A, torch.tensor([3.0, 4.0])).backward()
    >>> A.grad
    tensor([[3., 4.],
            [3., 4.]])
    """
    if torch is None:
        raise FeinsumError(
            "an einsum of tensors needs torch, which is not installed; run: pip "
            "install torch"
        )
    subscripts, operands = as_subscripts(arguments)
    if not operands:
        raise InvalidEinsumError("an einsum needs an operand; give a tensor")
    for position, operand in enumerate(operands):
        if not isinstance(operand, torch.Tensor):
            raise InvalidTypeError(
                f"operand {position} is of type {type(operand).__name__}; expected a "
                "tensor of torch: pass torch.as_tensor(operand)"
            )
        if operand.layout != torch.strided:
            raise InvalidTypeError(
                f"operand {position} has the layout {operand.layout}; expected a "
                "strided tensor: pass tensor.to_dense()"
            )
    dtype = reduce(torch.promote_types, (x.dtype for x in operands))
    operands = tuple(x.to(dtype) for x in operands)
    # torch.func needs a function with rules, but Dynamo refuses functions with a jvp
    if torch.compiler.is_compiling():
        return torch.ops.feinsum.einsum(subscripts, operands)
    return _Einsum.apply(subscripts, *operands)


class _Einsum(Function):  # type: ignore[misc]
    """An einsum of operands of one dtype, with its derivatives and batches."""

    @staticmethod
    def forward(subscripts: str, *operands: Any) -> Any:
        return torch.ops.feinsum.einsum(subscripts, list(operands))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _keep_operands(ctx, (inputs[0], inputs[1:]), output)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        return None, *_compute_gradients(ctx, ctx.needs_input_grad[1:], gradient)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        operands = ctx.saved_tensors
        directions = [
            _Einsum.apply(ctx.subscripts, *operands[:k], tangent, *operands[k + 1 :])
            for k, tangent in enumerate(tangents)
            if tangent is not None
        ]
        return sum(directions[1:], start=directions[0])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], subscripts: str, *operands: Any
    ) -> tuple[Any, int]:
        text = batch_subscripts(subscripts, [x.shape for x in operands], in_dims[1:])
        return _Einsum.apply(text, *operands), 0


def _keep_operands(ctx: Any, inputs: tuple[str, Sequence[Any]], output: Any) -> None:
    ctx.subscripts, operands = inputs
    ctx.save_for_backward(*operands)
    ctx.save_for_forward(*operands)


def _compute_gradients(ctx: Any, is_needed: Sequence[bool], gradient: Any) -> list[Any]:
    """Return the gradient of each operand that needs one, else None."""
    return [
        _compute_gradient(position, ctx.subscripts, ctx.saved_tensors, gradient)
        if is_needed[position]
        else None
        for position in range(len(is_needed))
    ]


def _compute_gradient(
    position: int, subscripts: str, operands: Sequence[Any], gradient: Any
) -> Any:
    shapes = tuple(tuple(x.shape) for x in operands)
    transposed = transpose_einsum(subscripts, shapes, position)
    # by torch's convention, gradients are conjugated
    conjugates = [x.conj() for k, x in enumerate(operands) if k != position]
    options = {"dtype": gradient.dtype, "device": gradient.device}
    terms = transposed.operands(gradient, conjugates, torch, **options)
    return torch_einsum(transposed.subscripts, *terms).reshape(transposed.shape)


def _evaluate(subscripts: str, operands: Sequence[Any]) -> Any:
    dtype, device = operands[0].dtype, operands[0].device
    if dtype == torch.bfloat16:  # numpy has no such numbers
        return _evaluate(subscripts, [x.float() for x in operands]).to(dtype)
    # an operator must return fresh memory: copy a result that may be a view
    is_view = len(operands) == 1
    if device.type != "cpu":
        with torch.no_grad():
            result = einsum(subscripts, *operands)
        return result.clone() if is_view else result
    arrays = [resolve_entries(x).detach().numpy() for x in operands]
    result = np.asarray(einsum(subscripts, *arrays))
    return torch.from_numpy(np.array(result, order="C") if is_view else result)


def _evaluate_shape(subscripts: str, operands: Sequence[Any]) -> Any:
    shape = infer_result_shape(subscripts, [tuple(x.shape) for x in operands])
    return operands[0].new_empty(shape)


def _batch(
    info: Any, in_dims: tuple[Any, ...], subscripts: str, operands: Sequence[Any]
) -> tuple[Any, int]:
    text = batch_subscripts(subscripts, [x.shape for x in operands], in_dims[1])
    return torch.ops.feinsum.einsum(text, operands), 0


def _register() -> Any:
    """Register the operator, which compilers treat as a single operation.

    Returns:
        The library; the operator exists as long as it is referenced.
    """
    # an operator of torch.library.custom_op would take three times as long to call
    library = torch.library.Library("feinsum", "DEF")
    library.define("einsum(str subscripts, Tensor[] operands) -> Tensor")
    library.impl("einsum", _evaluate, "CompositeExplicitAutograd")
    name = "feinsum::einsum"
    torch.library.register_fake(name, _evaluate_shape, lib=library)
    torch.library.register_autograd(
        name,
        lambda ctx, gradient: (
            None,
            _compute_gradients(ctx, ctx.needs_input_grad[1], gradient),
        ),
        setup_context=_keep_operands,
        lib=library,
    )
    torch.library.register_vmap(name, _batch, lib=library)
    return library


_LIBRARY = None if torch is None else _register()
