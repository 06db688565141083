"""Prepared calls with a sparse operand: the tree is bound, dense operands vary.

Programs such as decompositions multiply one tree by many dense operands. Work that
depends on the tree alone is done once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from feinsum.calling.kernel_cache import Calls
from feinsum.calling.options import CallOptions
from feinsum.calling.place import name_of
from feinsum.memory import remembered
from feinsum.nests import Nest, NestForm, Network, Sizes
from feinsum.result_memory import aligned_empty
from feinsum.sparse import CSF

if TYPE_CHECKING:
    from feinsum.measure import CompiledKernel

MOST_REPEATED = 16
"""Calls with one tree that are kept ready."""


class MadeNest(NamedTuple):
    """How a network is computed for some sizes."""

    nest: Nest
    form: NestForm
    n_chunks: int
    kernel: CompiledKernel


class RepeatedCall(NamedTuple):
    """A call as made; repeating it with the same tree and like arrays is faster."""

    tree: CSF
    key: Hashable

    @classmethod
    def of(
        cls, subscripts: str, arrays: Sequence[Any], options: CallOptions
    ) -> Self | None:
        """None unless there is exactly one tree; the call itself reports the error."""
        trees = [array for array in arrays if isinstance(array, CSF)]
        if len(trees) != 1:
            return None
        alike = tuple(
            None if array is trees[0] else (array.shape, array.dtype)
            for array in arrays
        )
        where = name_of(options.database), options.policy, options.on_miss
        return cls(trees[0], (subscripts, alike, where, options.effort))

    def ready(self) -> ReadyCall | None:
        return remembered(Calls).trees.get(self.tree, {}).get(self.key)

    def keep(self, ready: ReadyCall) -> None:
        known = remembered(Calls).trees.setdefault(self.tree, {})
        while len(known) >= MOST_REPEATED:
            known.pop(next(iter(known)))
        known[self.key] = ready


class ReadyCall(NamedTuple):
    """A call with its tree bound; only dense operands are missing.

    Attributes:
        held: the arrays of the tree and of its chunks.
        shapes: shapes of the arrays that the kernel fills.
        call: runs the kernel; takes the held arrays, then dense operands, then those.
        is_lasting: whether the values of the tree are read in place, so that changes
            affect the next call. The pattern stays.
        is_padded: whether an extent is filled up to a multiple of the lanes.
    """

    network: Network
    sizes: Sizes
    dtype: np.dtype[Any]
    made: MadeNest
    held: tuple[Any, ...]
    shapes: Mapping[str, tuple[int, ...]]
    call: Callable[[Sequence[Any]], None]
    is_lasting: bool
    is_padded: bool

    def run(self, arrays: Sequence[Any], out: Any = None) -> Any:
        """Compute the result for other dense operands.

        Args:
            out: memory for the result, which is used if the kernel can write into it.
        """
        from feinsum.codegen import nest_result

        given = out if out is not None and self._is_room(out, arrays) else None
        fresh = {name: self._memory(name, given) for name in self.shapes}
        self.call((*self.held, *self._dense(arrays), *fresh.values()))
        result = nest_result(self.made.nest, self.made.form, fresh["out"], self.sizes)
        return as_sparse(self.network, arrays[self._sparse], result)

    @property
    def _sparse(self) -> int:
        assert self.network.sparse is not None
        return self.network.sparse

    def _dense(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """The dense operands for the kernel, which takes their addresses alone."""
        from feinsum.codegen import dense_arguments

        sparse, dtype = self._sparse, self.dtype
        dense = [*arrays[:sparse], *arrays[sparse + 1 :]]
        if dense and not self.is_padded and all(_is_plain(x, dtype) for x in dense):
            return dense
        operands = arrays if dense else [*arrays, np.ones((), dtype)]
        made = self.made
        return [*dense_arguments(made.nest, operands, dtype, made.form).values()]

    def _memory(self, name: str, given: Any) -> Any:
        is_given = name == "out" and given is not None
        shape = self.shapes[name]
        return given.reshape(shape) if is_given else aligned_empty(shape, self.dtype)

    def _is_room(self, out: Any, arrays: Sequence[Any]) -> bool:
        """Whether a kernel can write its result into an array while it reads others."""
        if not isinstance(out, np.ndarray) or self.network.has_sparse_output:
            return False
        extents = self.sizes.extents
        shape = tuple(extents[index] for index in self.network.output)
        is_alike = (out.shape, out.dtype) == (shape, self.dtype) and out.flags.carray
        if not is_alike or out.size != prod(self.shapes["out"]):
            return False
        read = (x.values if isinstance(x, CSF) else x for x in arrays)
        return not any(np.may_share_memory(out, x) for x in read)


def _is_plain(array: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a kernel can read an array where it is."""
    flags = array.flags
    return bool(array.dtype == dtype and flags.c_contiguous and flags.aligned)


def ready_call(
    network: Network, tree: CSF, sizes: Sizes, dtype: np.dtype[Any], made: MadeNest
) -> ReadyCall:
    """The call of a kernel that is made, with all that its tree decides."""
    from feinsum.codegen import fresh_shapes, tree_arguments
    from feinsum.targets.host.device import HostBuilt

    nest, form = made.nest, made.form
    given = tree_arguments(nest, tree, sizes, dtype, form, made.n_chunks)
    assert isinstance(made.kernel.built, HostBuilt)
    kernel = made.kernel.built.kernel
    known = {name for name, _ in kernel.arguments}
    held = {name: x for name, x in given.items()
            if isinstance(x, np.ndarray) and name in known}  # fmt: skip
    numbers = {name: x for name, x in given.items() if not isinstance(x, np.ndarray)}
    shapes = fresh_shapes(nest, sizes, form, given.get("n_chunks", 1))
    dense = [f"T{k}" for k in range(len(network.inputs)) if k != network.sparse]
    call = kernel.caller((*held, *dense, *shapes), numbers)
    return ReadyCall(
        network,
        sizes,
        dtype,
        made,
        tuple(held.values()),
        shapes,
        call,
        is_lasting=given["values"] is tree.values,
        is_padded=form.filled(sizes.extents) != sizes.extents,
    )


def as_sparse(network: Network, tree: CSF, result: Any) -> Any:
    """The values of a sparse result as a tree, whose axes are those of the output."""
    if not network.has_sparse_output:
        return result
    axes = tuple(network.output.index(index) for index in network.levels)
    extents = dict(zip(axes, (tree.shape[axis] for axis in tree.axes), strict=True))
    shape = tuple(extents[axis] for axis in range(tree.order))
    return CSF(shape, axes, tree.indices, tree.pointers, result)
