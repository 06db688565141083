"""Cases of an einsum with a sparse operand, and kernels of recipes for them.

The arguments of such a kernel depend on its form: operands are filled up for lanes, and
chunks and copies are arguments. So a case has operands, and each kernel has arrays of
its own. The correct result is defined entry by entry, in numpy.
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

from feinsum.codegen import (
    choose_nest_index_dtype,
    extract_nest_result,
    generate_nest,
    make_nest_arguments,
)
from feinsum.errors import InvalidEinsumError, TransformError
from feinsum.ir import BatchedEinsum, IndexList, bind_shape, list_profile_names
from feinsum.measure.kernel import BoundKernel, CompiledKernel, compile_kernel
from feinsum.measure.reference import count_terms
from feinsum.measure.trial import draw_array
from feinsum.measure.verification import compute_tolerance
from feinsum.memory import get_remembered
from feinsum.nests import (
    Nest,
    NestForm,
    Network,
    Sizes,
    build_network,
    build_unfactorized,
    get_sizes,
)
from feinsum.nests.form import COPIES_BYTES, choose_n_chunks, count_needed_bytes
from feinsum.records import TransformSpec
from feinsum.sparse import CSF, from_dense, random_profile, random_uniform, to_csf
from feinsum.targets.protocol import OpenDevice, Timer
from feinsum.transforms import check_spec
from feinsum.transforms.nests import parse_recipe

Array = np.ndarray[Any, np.dtype[Any]]

RAGGED = (11, 13, 7, 9, 5, 6, 3)
"""Extents that no number of lanes divides, all different as far as possible."""

SMALL = (5, 4, 3, 2)
"""Extents of a tree that has every entry."""


@dataclass(frozen=True, eq=False)
class SparseCase:
    """Operands of an einsum, and the correct result.

    Attributes:
        einsum: canonical.
        sizes: values of its size parameters, and the profile.
        operands: by position, row after row; the sparse one is a tree. A scalar follows
            a single operand.
    """

    einsum: BatchedEinsum
    sizes: Mapping[str, int]
    operands: tuple[Any, ...]
    tolerance: float

    @property
    def network(self) -> Network:
        return build_network(self.einsum)

    @property
    def tree(self) -> CSF:
        tree: CSF = self.operands[self.network.sparse or 0]
        return tree

    @cached_property
    def expected(self) -> dict[str, Array]:
        network, n = self.network, len(self.network.inputs)
        rows = [
            compute_sparse_reference(network, self.operands[n * k : n * (k + 1)])
            for k in range(network.n_rows)
        ]
        return {"out": np.stack(rows) if len(rows) > 1 else rows[0]}

    def untransformed(self, opened: OpenDevice) -> SparseKernel:
        """Build one sequential loop over all indices that multiplies all operands."""
        return self._build_kernel(build_unfactorized(self.network), NestForm(), opened)

    def kernel(self, spec: TransformSpec, opened: OpenDevice) -> SparseKernel:
        """Build the kernel of a recipe.

        Raises:
            TransformError: if it does not fit, or takes too much memory.
            BuildError: if it cannot be built.
        """
        check_spec(spec, self.einsum)
        nest, form = parse_recipe(self.einsum, spec.parameters)
        return self._build_kernel(nest, form, opened)

    def _build_kernel(
        self, nest: Nest, form: NestForm, opened: OpenDevice
    ) -> SparseKernel:
        sizes = get_sizes(self.einsum, self.sizes)
        dtype = self.einsum.output_dtypes[0]
        n_threads = opened.device.compute_units
        n_chunks = choose_n_chunks(nest, form, sizes, n_threads)
        n_bytes = count_needed_bytes(nest, form, sizes, dtype.itemsize, n_chunks)
        if n_bytes > COPIES_BYTES:
            raise TransformError(
                f"buffers and copies of this nest take {n_bytes / 1e6:.3g} MB; "
                f"expected at most {COPIES_BYTES / 1e6:.3g} MB"
            )
        index_dtype = choose_nest_index_dtype(nest, sizes)
        dense = {i: n for i, n in sorted(sizes.extents.items())
                 if i not in nest.network.level_of}  # fmt: skip
        compiled = _compile(nest, form, dense, (dtype, index_dtype), opened)
        arguments = make_nest_arguments(
            nest, self.operands, dtype=dtype, form=form, n_chunks=n_chunks
        )
        return SparseKernel(compiled.bind(arguments), nest, form, sizes)


class _Kernels(LRUCache[Any, CompiledKernel]):
    """Compiled kernels that several trees share."""

    def __init__(self) -> None:
        super().__init__(maxsize=16)


def _compile(
    nest: Nest,
    form: NestForm,
    dense: Mapping[str, int],
    dtypes: tuple[np.dtype[Any], np.dtype[Any]],
    opened: OpenDevice,
) -> CompiledKernel:
    """Build the kernel of a nest for trees of every size, once.

    Args:
        nest: the nest to compute.
        form: the form of the kernel.
        dense: extents of the indices that the tree does not have.
        dtypes: of entries, and of indices.
        opened: the device to build for.
    """
    kernels = get_remembered(_Kernels)
    key = nest, form, tuple(dense.items()), dtypes, opened.device.id
    if key not in kernels:
        dtype, index_dtype = dtypes
        try:
            unit = generate_nest(
                nest, dense, dtype=dtype, index_dtype=index_dtype, form=form
            )
        except InvalidEinsumError as error:
            raise TransformError(str(error)) from error
        kernels[key] = compile_kernel(unit, opened)
    compiled: CompiledKernel = kernels[key]
    return compiled


@dataclass(frozen=True, eq=False)
class SparseKernel:
    """A kernel of a nest with its arguments; its time includes adding up copies."""

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
        """Run once, and return the seconds."""
        seconds = self.bound.run(timer)
        if not self.form.has_copies:
            return seconds
        copies = self.bound.read()["out"]
        start_s = perf_counter()
        extract_nest_result(self.nest, self.form, copies, self.sizes)
        return seconds + perf_counter() - start_s

    def read(self) -> dict[str, Array]:
        """Return the result, by its name."""
        out = self.bound.read()["out"]
        return {"out": extract_nest_result(self.nest, self.form, out, self.sizes)}

    def poison(self) -> None:
        """Fill the result with poison: the kernel clears all entries first."""
        self.bound.poison()

    def sharing(self, other: SparseKernel) -> SparseKernel:
        """Bind the same kernel to the arrays of another one, where layouts match."""
        return replace(self, bound=self.bound.sharing(other.bound))


def make_sparse_case(
    einsum: BatchedEinsum, sizes: Mapping[str, int], tree: CSF | None = None
) -> SparseCase:
    """Draw operands of these sizes; by default with a random tree of the profile.

    >>> from feinsum.ir import array, einsum, sparse_array
    >>> spmv = einsum("ij,j->i", sparse_array("A", ("M", "N")), array("x", "N"))
    >>> case = make_sparse_case(spmv, {"M": 9, "N": 8, "nodes.0": 7, "nodes.1": 20})
    >>> case.tree.profile, case.expected["out"].shape
    ((7, 20), (9,))
    """
    network = build_network(einsum)
    rng, dtype = np.random.default_rng(0), einsum.output_dtypes[0]
    arrays: dict[str, Any] = {}
    for operand in einsum.operands:
        shape = bind_shape(operand.shape, sizes)
        if not operand.storage:
            arrays[operand.name] = draw_array(rng, shape, operand.dtype)
            continue
        if tree is None:
            nodes = get_sizes(einsum, sizes).nodes
            # real tensors have fibers of uneven lengths
            tree = random_profile(shape, nodes, seed=0, skew=0.5)
        values = draw_array(rng, (len(tree.values),), operand.dtype)
        arrays[operand.name] = tree.with_values(values)
    units = [np.ones((), dtype)] * (len(network.inputs) - einsum.n_operands)
    operands = [
        array
        for row in einsum.rows
        for array in (*(arrays[operand.name] for operand in row), *units)
    ]
    tolerance = compute_tolerance(dtype, count_terms(einsum, sizes))
    return SparseCase(einsum, dict(sizes), tuple(operands), tolerance)


def make_ragged_sparse_cases(einsum: BatchedEinsum) -> list[SparseCase]:
    """Make trees that reveal wrong kernels: empty slices, one entry, every entry.

    Literal extents stay; all others are short.
    """
    names = [x.name for x in einsum.size_params]
    ragged = {n: RAGGED[k % len(RAGGED)] for k, n in enumerate(names)}
    small = {n: SMALL[k % len(SMALL)] for k, n in enumerate(names)}
    cases = []
    for sizes in (dict.fromkeys(names, 1), ragged):
        tree = to_csf(random_uniform(_get_tree_shape(einsum, sizes), 1, seed=0))
        cases.append(_make_case_of(einsum, sizes, tree))
    # About three entries in the fibers of the longest axis: some of them are empty.
    shape = _get_tree_shape(einsum, ragged)
    n_entries = max(1, min(prod(shape) // 3, 3 * max(shape)))
    tree = to_csf(random_uniform(shape, n_entries, seed=1))
    cases.append(_make_case_of(einsum, ragged, tree))
    shape = _get_tree_shape(einsum, small)
    # With long literal extents, every entry would be too many.
    if prod(shape) <= 2**20:
        cases.append(_make_case_of(einsum, small, to_csf(from_dense(np.ones(shape)))))
    return cases


def _get_tree_shape(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> tuple[int, ...]:
    # The extents do not depend on the profile, but have to be given one.
    profile = dict.fromkeys(list_profile_names(einsum), 1)
    extents = get_sizes(einsum, {**sizes, **profile}).extents
    return tuple(extents[i] for i in einsum.inputs[einsum.sparse_position or 0])


def _make_case_of(
    einsum: BatchedEinsum, sizes: Mapping[str, int], tree: CSF
) -> SparseCase:
    nodes = dict(zip(list_profile_names(einsum), tree.profile, strict=True))
    return make_sparse_case(einsum, {**sizes, **nodes}, tree)


PART_ENTRIES = 2**22
"""Approximate number of products that are computed at once."""


def compute_sparse_reference(network: Network, operands: Sequence[Any]) -> Array:
    """Compute the result of a network, or the values of its sparse result.

    For ``ij,j->i`` with the matrix ``[[., ., 5], [6, ., 7]]`` and ``x``::

        entry                5       6       7
        column of i          0       1       1
        column of j          2       0       2
        product with x   5 x[2]  6 x[0]  7 x[2]     added up where i is the same

    Args:
        network: what is computed.
        operands: one for each input; the sparse one is a tree.

    >>> from feinsum.nests import parse_network
    >>> from feinsum.sparse import COO, to_csf
    >>> matrix = to_csf(COO((2, 3), ([0, 1, 1], [2, 0, 2]), [5.0, 6.0, 7.0]))
    >>> compute_sparse_reference(parse_network("ij,j->i"),
    ...     [matrix, np.array([1.0, 2.0, 3.0])])
    array([15., 27.])
    """
    position = network.sparse or 0
    tree = operands[position]
    dense_operands = [(t, a) for p, (t, a) in enumerate(zip(network.inputs, operands,
              strict=True)) if p != position]  # fmt: skip
    extents = dict(zip(network.inputs[position], tree.shape, strict=True))
    for term, array in dense_operands:
        extents.update(zip(term, np.shape(array), strict=True))
    columns = dict(zip(network.levels, _expand_columns(tree), strict=True))
    dense = [i for i in network.output if i not in columns]
    dense_shape = [extents[i] for i in dense]
    dtype = np.result_type(tree.values, *(array for _, array in dense_operands))
    terms = [term for term, _ in dense_operands]

    def products_by_part() -> Iterator[tuple[slice, Array]]:
        for block in _split_entries(len(tree.values), terms, extents, columns):
            indices = {i: column[block] for i, column in columns.items()}
            yield (
                block,
                _multiply(tree.values[block], dense_operands, indices, dense, dtype),
            )

    if network.has_sparse_output:
        values = np.zeros((len(tree.values), *dense_shape), dtype)
        for block, products in products_by_part():
            values[block] = products
        return values
    stored = [i for i in network.output if i in columns]
    flat = np.zeros((prod(extents[i] for i in stored), *dense_shape), dtype)
    for block, products in products_by_part():
        # the product of extents may exceed 2**31 where each index fits into 32 bits
        rows = np.zeros(len(products), np.int64)
        for index in stored:
            rows = rows * extents[index] + columns[index][block]
        _add_rows(flat, rows, products)
    shaped = flat.reshape([extents[i] for i in (*stored, *dense)])
    return np.ascontiguousarray(
        shaped.transpose([(*stored, *dense).index(i) for i in network.output])
    )


def _add_rows(flat: Array, rows: Array, products: Array) -> None:
    """Add each product to its row; ``flat[rows] += products`` adds only one to each."""
    # stable, so that each row adds its products in the order of the entries
    order = np.argsort(rows, kind="stable")
    firsts = np.flatnonzero(np.diff(rows[order], prepend=-1))
    if len(firsts):
        flat[rows[order][firsts]] += np.add.reduceat(products[order], firsts, axis=0)


def _expand_columns(tree: CSF) -> list[Array]:
    """Return the index of every entry at each level, in the order of the entries."""
    columns = []
    for level, column in enumerate(tree.indices):
        for pointers in tree.pointers[level:]:
            column = np.repeat(column, np.diff(pointers))
        columns.append(column)
    return columns


def _split_entries(
    n_entries: int,
    terms: Sequence[IndexList],
    extents: dict[str, int],
    columns: Mapping[str, Array],
) -> Iterator[slice]:
    """Yield slices of entries whose products fit the memory, with all dense indices."""
    dense = {i for term in terms for i in term if i not in columns}
    step = max(1, PART_ENTRIES // max(1, prod(extents[i] for i in dense)))
    for first in range(0, n_entries, step):
        yield slice(first, first + step)


def _multiply(
    values: Array,
    dense_operands: Sequence[tuple[IndexList, Any]],
    columns: Mapping[str, Array],
    output: Sequence[str],
    dtype: np.dtype[Any],
) -> Array:
    """Multiply some entries with all other operands, and sum over the rest.

    Args:
        values: the entries of the sparse operand.
        dense_operands: the terms and the arrays of the other operands.
        columns: the index of each entry at each level of the tree.
        output: dense indices that are not summed.
        dtype: in which to compute.
    """
    # numpy numbers indices; 0 is that of the entries
    numbers: dict[str, int] = {}
    arguments: list[Any] = [values.astype(dtype), [0]]
    for term, array in dense_operands:
        dense = [i for i in term if i not in columns]
        axes = [numbers.setdefault(i, len(numbers) + 1) for i in dense]
        stored_axes = [axis for axis, i in enumerate(term) if i in columns]
        dense_axes = [axis for axis, i in enumerate(term) if i not in columns]
        slices = np.asarray(array, dtype).transpose([*stored_axes, *dense_axes])
        if stored_axes:  # one slice for each entry
            slices = slices[tuple(columns[term[axis]] for axis in stored_axes)]
        arguments += [slices, [0, *axes] if stored_axes else axes]
    result = [0, *(numbers[i] for i in output)]
    return np.asarray(np.einsum(*arguments, result, optimize=True))
