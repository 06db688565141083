"""Cases of an einsum with a sparse operand, and kernels of recipes for them.

The arguments of such a kernel depend on its form: operands are filled up for lanes, and
chunks and copies are arguments. So a case has operands, and each kernel its own arrays.
The correct result is defined entry by entry, in numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from time import perf_counter
from typing import Any

import numpy as np
from cachetools import LRUCache

from feinsum.codegen import generate_nest, nest_arguments, nest_index_dtype, nest_result
from feinsum.errors import InvalidEinsumError, TransformError
from feinsum.ir import BatchedEinsum, IndexList, profile_names, shape_at
from feinsum.measure.kernel import BoundKernel, CompiledKernel, compile_kernel
from feinsum.measure.reference import n_terms
from feinsum.measure.verification import tolerance_for
from feinsum.memory import remembered
from feinsum.nests import (
    Nest,
    NestForm,
    Network,
    Sizes,
    network_of,
    sizes_at,
    unfactorized,
)
from feinsum.nests.form import COPIES_BYTES, n_chunks_for, needed_bytes
from feinsum.records import TransformSpec
from feinsum.sparse import CSF, from_dense, random_profile, random_uniform, to_csf
from feinsum.targets.protocol import OpenDevice, Timer
from feinsum.transforms import check_spec
from feinsum.transforms.nests import recipe_of

Array = np.ndarray[Any, np.dtype[Any]]

SKEW = 0.5
"""Skew of random trees: real tensors have fibers of uneven lengths."""

RAGGED = (11, 13, 7, 9, 5, 6, 3)
"""Extents that no number of lanes divides, all different as far as possible."""

MOST_KERNELS = 16

SMALL = (5, 4, 3, 2)
"""Extents of a tree that has every entry."""


@dataclass(frozen=True, eq=False)
class SparseCase:
    """Operands of an einsum, and the result that is right.

    Attributes:
        einsum: canonical.
        sizes: values of its size parameters, and the profile.
        operands: by position, of one row after the other; the sparse one is a tree. One
            of rank 0 follows a single operand.
    """

    einsum: BatchedEinsum
    sizes: Mapping[str, int]
    operands: tuple[Any, ...]
    tolerance: float

    @property
    def network(self) -> Network:
        return network_of(self.einsum)

    @property
    def known(self) -> Sizes:
        return sizes_at(self.einsum, self.sizes)

    @property
    def tree(self) -> CSF:
        found: CSF = self.operands[self.network.sparse or 0]
        return found

    @cached_property
    def expected(self) -> dict[str, Array]:
        network, n = self.network, len(self.network.inputs)
        rows = [
            sparse_reference(network, self.operands[n * k : n * (k + 1)])
            for k in range(network.n_rows)
        ]
        return {"out": np.stack(rows) if len(rows) > 1 else rows[0]}

    def untransformed(self, opened: OpenDevice) -> SparseKernel:
        """All operands multiplied in one loop over all indices, by one thread."""
        return self._kernel(unfactorized(self.network), NestForm(), opened)

    def kernel(self, spec: TransformSpec, opened: OpenDevice) -> SparseKernel:
        """The kernel of a recipe.

        Raises:
            TransformError: if it does not fit, or takes too much memory.
            BuildError: if it cannot be built.
        """
        check_spec(spec, self.einsum)
        nest, form = recipe_of(self.einsum, spec.parameters)
        return self._kernel(nest, form, opened)

    def _kernel(self, nest: Nest, form: NestForm, opened: OpenDevice) -> SparseKernel:
        known, dtype = self.known, self.einsum.output_dtypes[0]
        n_threads = opened.device.compute_units
        n_chunks = n_chunks_for(nest, form, known, n_threads)
        n_bytes = needed_bytes(nest, form, known, dtype.itemsize, n_chunks)
        if n_bytes > COPIES_BYTES:
            raise TransformError(
                f"buffers and copies of this nest take {n_bytes / 1e6:.3g} MB; "
                f"expected at most {COPIES_BYTES / 1e6:.3g} MB"
            )
        index_dtype = nest_index_dtype(nest, known)
        dense = {i: n for i, n in sorted(known.extents.items())
                 if i not in nest.network.level_of}  # fmt: skip
        compiled = _compiled(nest, form, dense, (dtype, index_dtype), opened)
        arguments = nest_arguments(
            nest, self.operands, dtype=dtype, form=form, n_chunks=n_chunks
        )
        return SparseKernel(compiled.bind(arguments), nest, form, known)


class _Kernels(LRUCache[Any, CompiledKernel]):
    """Kernels that several trees have in common."""

    def __init__(self) -> None:
        super().__init__(maxsize=MOST_KERNELS)


def _compiled(
    nest: Nest,
    form: NestForm,
    dense: Mapping[str, int],
    dtypes: tuple[np.dtype[Any], np.dtype[Any]],
    opened: OpenDevice,
) -> CompiledKernel:
    """The kernel of a nest, for trees of every size.

    Args:
        nest: that is computed.
        form: of the kernel.
        dense: extents of the indices that the tree does not have.
        dtypes: of entries, and of indices.
        opened: the device that it is built for.
    """
    kernels = remembered(_Kernels)
    key = nest, form, tuple(dense.items()), dtypes, opened.device.id
    if key not in kernels:
        dtype, index_dtype = dtypes
        try:
            made = generate_nest(
                nest, dense, dtype=dtype, index_dtype=index_dtype, form=form
            )
        except InvalidEinsumError as error:
            raise TransformError(str(error)) from error
        kernels[key] = compile_kernel(made, opened)
    found: CompiledKernel = kernels[key]
    return found


@dataclass(frozen=True, eq=False)
class SparseKernel:
    """A kernel of a nest with its arguments; to its time belongs adding up copies."""

    bound: BoundKernel
    nest: Nest
    form: NestForm
    sizes: Sizes

    @property
    def timer(self) -> Timer:
        return self.bound.timer

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("out",)

    def run(self, timer: Timer | None = None) -> float:
        """Run once; the time in seconds."""
        seconds = self.bound.run(timer)
        if not self.form.has_copies:
            return seconds
        copies = self.bound.read()["out"]
        start_s = perf_counter()
        nest_result(self.nest, self.form, copies, self.sizes)
        return seconds + perf_counter() - start_s

    def read(self) -> dict[str, Array]:
        """The result, by its name."""
        out = self.bound.read()["out"]
        return {"out": nest_result(self.nest, self.form, out, self.sizes)}

    def poison(self) -> None:
        """Fill the result with values that are none: the kernel clears all first."""
        self.bound.poison()

    def sharing(self, other: SparseKernel) -> SparseKernel:
        """The same kernel on the arrays of another one, where they lie alike."""
        return replace(self, bound=self.bound.sharing(other.bound))


def make_sparse_case(
    einsum: BatchedEinsum, sizes: Mapping[str, int], tree: CSF | None = None
) -> SparseCase:
    """Random operands of these sizes; by default with a random tree of this profile.

    >>> from feinsum.ir import array, einsum, sparse_array
    >>> spmv = einsum("ij,j->i", sparse_array("A", ("M", "N")), array("x", "N"))
    >>> case = make_sparse_case(spmv, {"M": 9, "N": 8, "nodes.0": 7, "nodes.1": 20})
    >>> case.tree.profile, case.expected["out"].shape
    ((7, 20), (9,))
    """
    network, known = network_of(einsum), sizes_at(einsum, sizes)
    rng, dtype = np.random.default_rng(0), einsum.output_dtypes[0]
    arrays: dict[str, Any] = {}
    for operand in einsum.operands:
        shape = shape_at(operand.shape, sizes)
        if not operand.storage:
            arrays[operand.name] = _drawn(rng, shape, operand.dtype)
            continue
        if tree is None:
            tree = random_profile(shape, known.nodes, seed=0, skew=SKEW)
        values = _drawn(rng, (len(tree.values),), operand.dtype)
        valued = CSF(tree.shape, tree.axes, tree.indices, tree.pointers, values)
        arrays[operand.name] = valued
    ones = [np.ones((), dtype)] * (len(network.inputs) - einsum.n_operands)
    operands = [
        array
        for row in einsum.rows
        for array in (*(arrays[operand.name] for operand in row), *ones)
    ]
    tolerance = tolerance_for(dtype, n_terms(einsum, sizes))
    return SparseCase(einsum, dict(sizes), tuple(operands), tolerance)


def ragged_sparse_cases(einsum: BatchedEinsum) -> list[SparseCase]:
    """Trees that kernels go wrong with: empty slices, one entry, every entry.

    Of an index with a literal extent it stays; all others are short.
    """
    return [*_ragged(einsum)]


def _ragged(einsum: BatchedEinsum) -> Iterator[SparseCase]:
    names = [x.name for x in einsum.size_params]
    ragged = {n: RAGGED[k % len(RAGGED)] for k, n in enumerate(names)}
    small = {n: SMALL[k % len(SMALL)] for k, n in enumerate(names)}
    for sizes in (dict.fromkeys(names, 1), ragged):
        shape = _shape(einsum, sizes)
        yield _with_tree(einsum, sizes, to_csf(random_uniform(shape, 1, seed=0)))
    shape = _shape(einsum, ragged)
    n_entries = max(1, min(prod(shape) // 3, 3 * max(shape)))
    yield _with_tree(einsum, ragged, to_csf(random_uniform(shape, n_entries, seed=1)))
    shape = _shape(einsum, small)
    if prod(shape) <= 2**20:
        yield _with_tree(einsum, small, to_csf(from_dense(np.ones(shape))))


def _shape(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> tuple[int, ...]:
    known = sizes_at(einsum, {**sizes, **dict.fromkeys(profile_names(einsum), 1)})
    return tuple(known.extents[i] for i in einsum.inputs[einsum.sparse_position or 0])


def _with_tree(
    einsum: BatchedEinsum, sizes: Mapping[str, int], tree: CSF
) -> SparseCase:
    nodes = dict(zip(profile_names(einsum), tree.profile, strict=True))
    return make_sparse_case(einsum, {**sizes, **nodes}, tree)


def _drawn(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    real = rng.uniform(0.5, 1.5, shape)
    if dtype.kind == "c":
        return np.asarray(real + 1j * rng.uniform(0.5, 1.5, shape), dtype)
    return np.asarray(real).astype(dtype)


PART_ENTRIES = 2**22
"""Approximate number of products that are computed at once."""

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def sparse_reference(network: Network, operands: Sequence[Any]) -> Array:
    """The result of a network, or the values of its sparse result.

    Of each entry of the tree, the slices of the other operands that it meets are
    multiplied by ``numpy.einsum``, and the products are added to the result.

    Args:
        network: what is computed.
        operands: one for each input; the sparse one is a tree.

    >>> from feinsum.nests import network
    >>> from feinsum.sparse import COO, to_csf
    >>> matrix = to_csf(COO((2, 3), ([0, 1, 1], [2, 0, 2]), [5.0, 6.0, 7.0]))
    >>> sparse_reference(network("ij,j->i"), [matrix, np.array([1.0, 2.0, 3.0])])
    array([15., 27.])
    """
    position = network.sparse or 0
    tree = operands[position]
    others = [(t, a) for p, (t, a) in enumerate(zip(network.inputs, operands,
              strict=True)) if p != position]  # fmt: skip
    extents = dict(zip(network.inputs[position], tree.shape, strict=True))
    for term, array in others:
        extents.update(zip(term, np.shape(array), strict=True))
    places = dict(zip(network.levels, _columns(tree), strict=True))
    left = [i for i in network.output if i not in places]
    held = [tree.values, *(array for _, array in others)]
    dtype = np.result_type(*held)
    kept = [i for i in network.output if i in places]
    flat = np.zeros(
        (prod(extents[i] for i in kept), *(extents[i] for i in left)), dtype
    )
    n_values = len(tree.values) if network.has_sparse_output else 0
    values = np.zeros((n_values, *(extents[i] for i in left)), dtype)
    for part in _parts(len(tree.values), [t for t, _ in others], extents, places):
        here = {i: column[part] for i, column in places.items()}
        found = _products(tree.values[part], others, here, left, dtype)
        if network.has_sparse_output:
            values[part] = found
            continue
        at = np.zeros(len(found), np.int64)
        for index in kept:
            at = at * extents[index] + here[index]
        order = np.argsort(at, kind="stable")
        firsts = np.flatnonzero(np.diff(at[order], prepend=-1))
        if len(firsts):
            flat[at[order][firsts]] += np.add.reduceat(found[order], firsts, axis=0)
    if network.has_sparse_output:
        return values
    shaped = flat.reshape([extents[i] for i in (*kept, *left)])
    return np.ascontiguousarray(
        shaped.transpose([(*kept, *left).index(i) for i in network.output])
    )


def _columns(tree: CSF) -> list[Array]:
    """The index of every entry at each level, in the order of the entries."""
    found = []
    for level, column in enumerate(tree.indices):
        for pointers in tree.pointers[level:]:
            column = np.repeat(column, np.diff(pointers))
        found.append(column)
    return found


def _parts(
    n_entries: int,
    terms: Sequence[IndexList],
    extents: dict[str, int],
    places: dict[str, Array],
) -> Iterator[slice]:
    """Slices of entries whose products fit the memory, with all dense indices."""
    dense = {i for term in terms for i in term if i not in places}
    step = max(1, PART_ENTRIES // max(1, prod(extents[i] for i in dense)))
    for first in range(0, n_entries, step):
        yield slice(first, first + step)


def _products(
    values: Array,
    others: Sequence[tuple[IndexList, Any]],
    places: dict[str, Array],
    left: Sequence[str],
    dtype: np.dtype[Any],
) -> Array:
    """For some entries, the product with all other operands, summed over the rest."""
    entry, letters = LETTERS[0], LETTERS[1:]
    names: dict[str, str] = {}
    terms, arrays = [entry], [values.astype(dtype)]
    for term, array in others:
        dense = [i for i in term if i not in places]
        for index in dense:
            names.setdefault(index, letters[len(names)])
        stored = [axis for axis, i in enumerate(term) if i in places]
        rest = [axis for axis, i in enumerate(term) if i not in places]
        turned = np.asarray(array, dtype).transpose([*stored, *rest])
        if stored:
            turned = turned[tuple(places[term[axis]] for axis in stored)]
        terms.append((entry if stored else "") + "".join(names[i] for i in dense))
        arrays.append(turned)
    result = entry + "".join(names[i] for i in left)
    found = np.einsum(f"{','.join(terms)}->{result}", *arrays, optimize=True)
    return np.asarray(found)
