"""Prepared calls with a sparse operand: the tree is bound, dense operands vary.

Programs such as tensor decompositions multiply one tree by many dense operands. Here,
work that depends on the tree alone is done once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from feinsum.calling.kernel_cache import Calls, LookupOptions
from feinsum.memory import get_remembered
from feinsum.nests import Nest, NestForm, Network, Sizes
from feinsum.result_memory import make_aligned
from feinsum.sparse import CSF

if TYPE_CHECKING:
    from feinsum.measure import CompiledKernel

MAX_REPEATED = 16
"""Maximum calls with one tree that are kept."""


class NestKernel(NamedTuple):
    """The nest of a network, its form, and the kernel that computes it."""

    nest: Nest
    form: NestForm
    n_chunks: int
    kernel: CompiledKernel


class RepeatedCall(NamedTuple):
    """The key of a call: repeated calls have one tree, and arrays of equal form."""

    tree: CSF
    key: Hashable

    @classmethod
    def of(
        cls, subscripts: str, arrays: Sequence[Any], options: LookupOptions
    ) -> Self | None:
        """Make the key of a call; None unless there is exactly one tree."""
        # the cache has the tree itself as a weak key, which does not keep it alive
        trees = [array for array in arrays if isinstance(array, CSF)]
        if len(trees) != 1:
            return None
        alike = tuple(
            None if array is trees[0] else (array.shape, array.dtype)
            for array in arrays
        )
        return cls(trees[0], (subscripts, alike, options))

    def ready(self) -> ReadyCall | None:
        return get_remembered(Calls).trees.get(self.tree, {}).get(self.key)

    def keep(self, ready: ReadyCall) -> None:
        calls = get_remembered(Calls).trees.setdefault(self.tree, {})
        # the oldest first: dictionaries keep the order of insertion
        while len(calls) >= MAX_REPEATED:
            calls.pop(next(iter(calls)))
        calls[self.key] = ready


class ReadyCall(NamedTuple):
    """A call with its tree bound; only dense operands are missing.

    Attributes:
        tree_arrays: the arrays of the tree and of its chunks.
        shapes: shapes of the arrays that the kernel fills.
        call: runs the kernel; takes ``tree_arrays``, then the dense operands, then the
            arrays to fill.
        is_lasting: whether the values of the tree are read in place, so that changes of
            values affect the next call. The pattern must not change.
        is_padded: whether an extent is padded to a multiple of the vector lanes.
    """

    network: Network
    sizes: Sizes
    dtype: np.dtype[Any]
    nest_kernel: NestKernel
    tree_arrays: tuple[Any, ...]
    shapes: Mapping[str, tuple[int, ...]]
    call: Callable[[Sequence[Any]], None]
    is_lasting: bool
    is_padded: bool

    def run(self, arrays: Sequence[Any], out: Any = None) -> Any:
        """Compute the result for these dense operands.

        Args:
            arrays: the dense operands, in order.
            out: memory for the result, which is used if the kernel can write into it.
        """
        from feinsum.codegen import extract_nest_result

        target = out if out is not None and self._is_room(out, arrays) else None
        fresh = {name: self._get_memory(name, target) for name in self.shapes}
        self.call((*self.tree_arrays, *self._prepare_dense(arrays), *fresh.values()))
        result = extract_nest_result(
            self.nest_kernel.nest, self.nest_kernel.form, fresh["out"], self.sizes
        )
        return as_sparse(self.network, arrays[self._sparse], result)

    @property
    def _sparse(self) -> int:
        assert self.network.sparse is not None
        return self.network.sparse

    def _prepare_dense(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Return the dense operands in the layout that the kernel reads."""
        from feinsum.codegen import make_dense_arguments

        sparse, dtype = self._sparse, self.dtype
        dense = [*arrays[:sparse], *arrays[sparse + 1 :]]
        if dense and not self.is_padded and all(_is_plain(x, dtype) for x in dense):
            return dense
        operands = arrays if dense else [*arrays, np.ones((), dtype)]
        nest_kernel = self.nest_kernel
        return [
            *make_dense_arguments(
                nest_kernel.nest, operands, dtype, nest_kernel.form
            ).values()
        ]

    def _get_memory(self, name: str, target: Any) -> Any:
        is_given = name == "out" and target is not None
        shape = self.shapes[name]
        return target.reshape(shape) if is_given else make_aligned(shape, self.dtype)

    def _is_room(self, out: Any, arrays: Sequence[Any]) -> bool:
        """Return whether a kernel can write into an array while it reads others."""
        if not isinstance(out, np.ndarray) or self.network.has_sparse_output:
            return False
        extents = self.sizes.extents
        shape = tuple(extents[index] for index in self.network.output)
        is_alike = (out.shape, out.dtype) == (shape, self.dtype) and out.flags.carray
        if not is_alike or out.size != prod(self.shapes["out"]):
            return False
        read = (x.values if isinstance(x, CSF) else x for x in arrays)
        # if out overlaps an operand, the kernel would read its own results
        return not any(np.may_share_memory(out, x) for x in read)


def _is_plain(array: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a kernel can read an array in place."""
    flags = array.flags
    return bool(array.dtype == dtype and flags.c_contiguous and flags.aligned)


def bind_tree(
    network: Network,
    tree: CSF,
    sizes: Sizes,
    dtype: np.dtype[Any],
    nest_kernel: NestKernel,
) -> ReadyCall:
    """Bind a kernel to a tree: convert the tree's arrays, and fix its sizes."""
    from feinsum.codegen import compute_output_shapes, make_tree_arguments
    from feinsum.targets.host.device import HostBuilt

    nest, form = nest_kernel.nest, nest_kernel.form
    arguments = make_tree_arguments(
        nest, tree, sizes, dtype, form, nest_kernel.n_chunks
    )
    assert isinstance(nest_kernel.kernel.built, HostBuilt)
    kernel = nest_kernel.kernel.built.kernel
    names = {name for name, _ in kernel.arguments}
    tree_arrays = {name: x for name, x in arguments.items()
            if isinstance(x, np.ndarray) and name in names}  # fmt: skip
    numbers = {
        name: x for name, x in arguments.items() if not isinstance(x, np.ndarray)
    }
    shapes = compute_output_shapes(nest, sizes, form, arguments.get("n_chunks", 1))
    dense = [f"T{k}" for k in range(len(network.inputs)) if k != network.sparse]
    call = kernel.caller((*tree_arrays, *dense, *shapes), numbers)
    return ReadyCall(
        network,
        sizes,
        dtype,
        nest_kernel,
        tuple(tree_arrays.values()),
        shapes,
        call,
        is_lasting=arguments["values"] is tree.values,
        is_padded=form.filled(sizes.extents) != sizes.extents,
    )


def as_sparse(network: Network, tree: CSF, result: Any) -> Any:
    """Wrap the values of a sparse result as a tree, with the axes of the output."""
    if not network.has_sparse_output:
        return result
    axes = [network.output.index(index) for index in network.levels]
    return tree.with_values(result, axes)
