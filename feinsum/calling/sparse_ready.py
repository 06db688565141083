"""Prepared calls with a sparse operand: the tree is bound, dense operands vary.

Programs such as decompositions multiply one tree by many dense operands. Work that
depends on the tree alone is done once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from feinsum.calling.kernel_cache import Calls
from feinsum.calling.options import CallOptions
from feinsum.calling.place import name_of
from feinsum.memory import remembered
from feinsum.nests import Nest, NestForm, Network, Sizes
from feinsum.sparse import CSF

if TYPE_CHECKING:
    from feinsum.measure import CompiledKernel

__all__ = ["MadeNest", "ReadyCall", "RepeatedCall", "as_sparse", "ready_call"]

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
        shapes: shapes of the arrays that every call starts with zeros.
        call: runs the kernel; takes the held arrays, then dense operands, then zeros.
        is_lasting: whether the arrays of the tree are read in place, so that values
            changed in place affect the next call.
    """

    network: Network
    sizes: Sizes
    dtype: np.dtype[Any]
    made: MadeNest
    held: tuple[Any, ...]
    shapes: Mapping[str, tuple[int, ...]]
    call: Callable[[Sequence[Any]], None]
    is_lasting: bool

    def run(self, arrays: Sequence[Any]) -> Any:
        """Compute the result for other dense operands."""
        from feinsum.codegen import dense_arguments, nest_result

        nest, form = self.made.nest, self.made.form
        operands = [*arrays, np.ones((), self.dtype)] if len(arrays) == 1 else arrays
        dense = dense_arguments(nest, operands, self.dtype, form)
        fresh = [np.zeros(shape, self.dtype) for shape in self.shapes.values()]
        self.call((*self.held, *dense.values(), *fresh))
        out = fresh[list(self.shapes).index("out")]
        result = nest_result(nest, form, out, self.sizes)
        tree = next(array for array in arrays if isinstance(array, CSF))
        return as_sparse(self.network, tree, result)


def ready_call(
    network: Network, tree: CSF, sizes: Sizes, dtype: np.dtype[Any], made: MadeNest
) -> ReadyCall:
    """The call of a kernel that is made, with all that its tree decides."""
    from feinsum.codegen import fresh_shapes, tree_arguments
    from feinsum.targets.host.device import HostBuilt

    nest, form = made.nest, made.form
    given = tree_arguments(nest, tree, sizes, dtype, form, made.n_chunks)
    held = {name: x for name, x in given.items() if isinstance(x, np.ndarray)}
    numbers = {name: x for name, x in given.items() if name not in held}
    shapes = fresh_shapes(nest, sizes, form, given.get("n_chunks", 1))
    dense = [f"T{k}" for k in range(len(network.inputs)) if k != network.sparse]
    assert isinstance(made.kernel.built, HostBuilt)
    call = made.kernel.built.kernel.caller((*held, *dense, *shapes), numbers)
    own = {id(x) for x in (tree.values, *tree.indices, *tree.pointers)}
    return ReadyCall(
        network,
        sizes,
        dtype,
        made,
        tuple(held.values()),
        shapes,
        call,
        is_lasting=all(id(x) in own for name, x in held.items() if name != "chunks"),
    )


def as_sparse(network: Network, tree: CSF, result: Any) -> Any:
    """The values of a sparse result as a tree, whose axes are those of the output."""
    if not network.has_sparse_output:
        return result
    axes = tuple(network.output.index(index) for index in network.levels)
    extents = dict(zip(axes, (tree.shape[axis] for axis in tree.axes), strict=True))
    shape = tuple(extents[axis] for axis in range(tree.order))
    return CSF(shape, axes, tree.indices, tree.pointers, result)
