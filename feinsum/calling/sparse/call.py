"""Calls with a sparse operand.

A call of ``ijk,kr->ijr`` with a sparse tensor goes through these values::

    operands --> tree --> Network --> NestKernel --> ReadyCall --> result
    scipy, COO   CSF      einsum,     nest, form,    bound to the tree,
                 levels   levels      kernel         kept for repeated calls

The nest is that of the recorded recipe, or else the one that is estimated to be the
fastest. If no kernel can be built, numpy computes the call from coordinates.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.calling.by_numpy import (
    evaluate_in_steps,
    evaluate_instead,
    find_caller_level,
    is_for_caller,
)
from feinsum.calling.kernel_cache import Calls, LookupOptions
from feinsum.calling.operands import as_array
from feinsum.calling.sparse.ready import (
    NestKernel,
    RepeatedCall,
    as_sparse,
    bind_tree,
)
from feinsum.calling.sparse.trees import (
    are_trees,
    choose_tree,
    find_estimated_nest,
    get_matrix_tree,
)
from feinsum.contraction.paths import find_path
from feinsum.errors import (
    DeviceUnavailableError,
    FeinsumWarning,
    InvalidEinsumError,
    RecordNotFoundError,
)
from feinsum.ir import IndexList, parse_subscripts
from feinsum.memory import get_remembered
from feinsum.nests import (
    Nest,
    NestForm,
    Network,
    Sizes,
    choose_form,
    measure_sizes,
)
from feinsum.nests.form import COPIES_BYTES, choose_n_chunks, count_needed_bytes
from feinsum.result_memory import check_free_memory
from feinsum.sparse import COO, CSF, from_object, is_sparse, to_coo, to_csf

if TYPE_CHECKING:
    from feinsum.measure import CompiledKernel

_DTYPES = frozenset(map(np.dtype, ("f4", "f8", "c8", "c16")))


def call_sparse(
    subscripts: str,
    operands: Sequence[Any],
    device: str | None,
    options: LookupOptions | None = None,
    out: Any = None,
) -> Any:
    """Evaluate the einsum of dense arrays and one sparse array.

    Args:
        subscripts: as for :func:`feinsum.call_einsum`.
        operands: the operands as given. A tree is read in place; one of several trees
            is chosen. Other formats are converted to a tree once: matrices by rows or
            columns, coordinates in the level order that
            :func:`feinsum.calling.sparse.trees.choose_tree` chooses.
        device: None, or the host.
        options: how to look up a recipe; if there is none, the nest estimated to be the
            fastest is used.
        out: memory for a dense result, which is used if it fits.

    Returns:
        A dense array. If the output has exactly the indices of the sparse operand, a
        :class:`feinsum.sparse.CSF` with its pattern.

    Raises:
        InvalidEinsumError: with the rule ``operand`` for two sparse operands,
            ``dtype``, ``shape``, ``network`` or ``subscripts``.
        DeviceUnavailableError: for any other device. If a device is given and no kernel
            can be built, any error of the build; otherwise numpy computes the result.
        MeasurementError: if a dense result does not fit into memory.
        RecordNotFoundError: if the options require a recipe, and there is none.
    """
    if device is not None and device.strip().lower() not in ("", "host"):
        raise DeviceUnavailableError(
            f"sparse operands are multiplied on the host, not on {device!r}; omit the "
            "device"
        )
    options = options or LookupOptions()
    arrays = [_read(operand, k) for k, operand in enumerate(operands)]
    try:
        return _compute_by_kernel(subscripts, arrays, options, out)
    except Exception as error:  # a kernel is an improvement, never a condition
        if device is not None or options.on_miss == "raise":
            raise
        return evaluate_instead(lambda: _compute_by_numpy(subscripts, arrays), error)


def _compute_by_kernel(
    subscripts: str, operands: list[Any], options: LookupOptions, out: Any
) -> Any:
    arrays = _choose_tree(subscripts, operands, options)
    repeated = RepeatedCall.of(subscripts, arrays, options)
    # decompositions make one call with the same tree many times
    if repeated is not None and (ready := repeated.ready()):
        return ready.run(arrays, out)
    sparse = [k for k, array in enumerate(arrays) if isinstance(array, CSF)]
    network, arrays = _build_network(subscripts, arrays, sparse[0])
    sizes = measure_sizes(network, arrays)
    dtype = _find_result_dtype(arrays)
    _check_result_room(network, sizes, dtype)
    if not (prod(sizes.extents.values()) and sizes.nodes[-1]):
        return as_sparse(
            network, arrays[sparse[0]], _make_empty_result(network, sizes, dtype)
        )
    nest_kernel = _get_shared_nest(network, arrays, sizes, dtype, options)
    ready = bind_tree(network, arrays[sparse[0]], sizes, dtype, nest_kernel)
    if repeated is not None and ready.is_lasting:
        repeated.keep(ready)
    return ready.run(arrays, out)


def _compute_by_numpy(subscripts: str, operands: list[Any]) -> Any:
    """Compute the result without a kernel, in the given level order."""
    position = _find_sparse_position(operands)
    arrays = _with_tree(operands, position, get_any_tree(operands[position]))
    _find_result_dtype(arrays)
    return compute_by_entries(subscripts, arrays)


def compute_by_entries(subscripts: str, operands: Sequence[Any]) -> Any:
    """Compute the einsum of a sparse operand and dense ones by numpy, in any dtype.

    Returns:
        A dense array, or a tree if the result has the pattern of the sparse operand.
    """
    position = _find_sparse_position(operands)
    arrays = _with_tree([*operands], position, get_any_tree(operands[position]))
    network, arrays = _build_network(subscripts, arrays, position)
    sizes = measure_sizes(network, arrays)
    dtype = _compute_result_dtype(arrays)
    _check_result_room(network, sizes, dtype)
    result = evaluate_entries(network, arrays, sizes, dtype)
    return as_sparse(network, arrays[position], result)


def _check_result_room(network: Network, sizes: Sizes, dtype: np.dtype[Any]) -> None:
    if not network.has_sparse_output:
        shape = [sizes.extents[i] for i in network.output]
        check_free_memory(prod(shape) * dtype.itemsize, "a result")


def _compute_result_dtype(arrays: Sequence[Any]) -> np.dtype[Any]:
    values = (a.values if isinstance(a, CSF) else a for a in arrays)
    return np.dtype(np.result_type(*values))


def _find_result_dtype(arrays: Sequence[Any]) -> np.dtype[Any]:
    dtype = _compute_result_dtype(arrays)
    if dtype not in _DTYPES:
        raise InvalidEinsumError(
            f"the result has dtype {dtype}; sparse operands are multiplied in float32, "
            "float64, complex64 or complex128: convert an operand",
            rules=("dtype",),
        )
    return dtype


def _read(operand: Any, position: int) -> Any:
    if type(operand) is np.ndarray or isinstance(operand, CSF):
        return operand
    if are_trees(operand):
        return tuple(operand)
    if isinstance(operand, np.ndarray) or not is_sparse(operand):
        return as_array(operand, position)
    tree = get_matrix_tree(operand)
    return from_object(operand) if tree is None else tree


def _choose_tree(
    subscripts: str, arrays: list[Any], options: LookupOptions
) -> list[Any]:
    """Replace coordinates, or several trees, by the tree that the kernel will read."""
    position = _find_sparse_position(arrays)
    operand = arrays[position]
    if isinstance(operand, CSF):
        return arrays
    shape = operand[0].shape if isinstance(operand, tuple) else operand.shape
    ranks = [len(shape) if k == position else x.ndim for k, x in enumerate(arrays)]
    inputs, output = _parse_index_lists(subscripts, ranks)

    def build_network(axes: tuple[int, ...]) -> Network:
        return _make_network(inputs, output, position, axes)

    def is_recorded(tree: CSF) -> bool:
        from feinsum.calling.sparse.recipe import find_recorded_recipe

        network, operands = _build_network(
            subscripts, _with_tree(arrays, position, tree), position
        )
        return find_recorded_recipe(network, operands, options)[0] is not None

    tree = choose_tree(build_network, operand, arrays, options, is_recorded)
    return _with_tree(arrays, position, tree)


def _with_tree(arrays: list[Any], position: int, tree: CSF) -> list[Any]:
    return [*arrays[:position], tree, *arrays[position + 1 :]]


def _find_sparse_position(arrays: Sequence[Any]) -> int:
    """Return the position of the sparse operand.

    Raises:
        InvalidEinsumError: if there are several.
    """
    sparse = [k for k, x in enumerate(arrays) if isinstance(x, (CSF, COO, tuple))]
    if len(sparse) > 1:
        raise InvalidEinsumError(
            f"operands {sparse} are sparse; at most one may be: make the others dense",
            rules=("operand",),
        )
    return sparse[0]


def _build_network(
    subscripts: str, arrays: list[Any], sparse: int
) -> tuple[Network, list[Any]]:
    """Build the network of a call; a single operand gets a factor of 1."""
    inputs, output = _parse_index_lists(subscripts, [len(a.shape) for a in arrays])
    network = _make_network(inputs, output, sparse, arrays[sparse].axes)
    # a nest needs at least one dense factor
    if len(arrays) == 1:
        arrays = [*arrays, np.ones((), np.result_type(arrays[0].values))]
    return network, arrays


def _parse_index_lists(
    subscripts: str, ranks: Sequence[int]
) -> tuple[list[IndexList], IndexList]:
    """Parse the indices of a call, and give them names that are valid in a kernel."""
    inputs, output = parse_subscripts(subscripts, ranks)
    names = {
        # names of indices become names of loops in C
        index: index if index.isascii() and index.isidentifier() else f"index_{k}"
        for k, index in enumerate(dict.fromkeys(chain(*inputs)))
    }
    return [_rename_term(term, names) for term in inputs], _rename_term(output, names)


def _rename_term(term: IndexList, names: Mapping[str, str]) -> IndexList:
    return tuple(names.get(index, index) for index in term)


def _make_network(
    inputs: Sequence[IndexList], output: IndexList, sparse: int, axes: tuple[int, ...]
) -> Network:
    term = inputs[sparse]
    levels = tuple(term[axis] for axis in axes)
    is_kept = sorted(output) == sorted(term)
    terms = (*inputs, ()) if len(inputs) == 1 else tuple(inputs)
    return Network(terms, output, sparse, levels, is_kept)


def _make_empty_result(network: Network, sizes: Sizes, dtype: np.dtype[Any]) -> Any:
    """Make the result of a call in which no product is formed: zeros, or no entries."""
    shape = [sizes.extents[i] for i in network.output]
    return np.zeros(0 if network.has_sparse_output else shape, dtype)


def _get_shared_nest(
    network: Network,
    arrays: list[Any],
    sizes: Sizes,
    dtype: np.dtype[Any],
    options: LookupOptions,
) -> NestKernel:
    extents = tuple(sorted(sizes.extents.items()))
    dtypes = tuple(a.values.dtype if isinstance(a, CSF) else a.dtype for a in arrays)
    key = ("nest", network, extents, sizes.nodes, dtypes, options)

    def make() -> NestKernel | Exception:
        try:
            return _make_nest(network, arrays, sizes, dtype, options)
        # cache failures, too, so that the next call fails fast
        except Exception as error:
            if is_for_caller(error) or options.on_miss == "raise":
                raise
            return error

    nest_kernel: NestKernel | Exception = get_remembered(Calls).sparse.get(key, make)
    if isinstance(nest_kernel, Exception):
        raise nest_kernel.with_traceback(None)
    return nest_kernel


def _make_nest(
    network: Network,
    arrays: list[Any],
    sizes: Sizes,
    dtype: np.dtype[Any],
    options: LookupOptions,
) -> NestKernel:
    from feinsum.calling.sparse.recipe import find_recorded_recipe
    from feinsum.measure import open_device

    recipe, reason = find_recorded_recipe(network, arrays, options)
    n_threads = open_device("host").device.compute_units
    if recipe is not None and not _has_room(recipe, sizes, dtype, n_threads):
        recipe, reason = None, "the recorded recipe takes too much memory"
    if recipe is None:
        _report_miss(options, reason)
    nest, form = recipe or _choose_estimated(network, sizes, dtype)
    n_chunks = choose_n_chunks(nest, form, sizes, n_threads)
    return NestKernel(
        nest, form, n_chunks, _build_kernel(nest, form, n_chunks, sizes, dtype)
    )


def _has_room(
    recipe: tuple[Nest, NestForm], sizes: Sizes, dtype: np.dtype[Any], n_threads: int
) -> bool:
    nest, form = recipe
    n_chunks = choose_n_chunks(nest, form, sizes, n_threads)
    n_bytes = count_needed_bytes(nest, form, sizes, dtype.itemsize, n_chunks)
    return n_bytes <= COPIES_BYTES


def _report_miss(options: LookupOptions, reason: str) -> None:
    if options.on_miss == "raise":
        raise RecordNotFoundError(reason)
    if options.on_miss == "warn":
        text = f"the nest estimated to be the fastest is used: {reason}"
        warnings.warn(text, FeinsumWarning, stacklevel=find_caller_level())


def _choose_estimated(
    network: Network, sizes: Sizes, dtype: np.dtype[Any]
) -> tuple[Nest, NestForm]:
    """Choose the nest and the form that are estimated to be the fastest."""
    best, machine = find_estimated_nest(network, sizes, dtype.itemsize)
    assert best is not None
    form = choose_form(
        best.nest,
        sizes,
        item_bytes=dtype.itemsize,
        vector_bytes=machine.vector_bytes if dtype.kind == "f" else 0,
        n_threads=machine.n_cores,
    )
    return best.nest, form


def _build_kernel(
    nest: Nest, form: NestForm, n_chunks: int, sizes: Sizes, dtype: np.dtype[Any]
) -> CompiledKernel:
    """Build the kernel of a nest, which serves trees of every size."""
    from feinsum.codegen import choose_nest_index_dtype, generate_nest
    from feinsum.measure import compile_kernel, open_device

    dense = {i: sizes.extents[i] for i in sorted(nest.network.indices)
             if i not in nest.network.level_of}  # fmt: skip
    index_dtype = choose_nest_index_dtype(nest, sizes)
    key = ("kernel", nest, form, tuple(dense.items()), dtype.str, index_dtype.str)

    def make() -> CompiledKernel:
        unit = generate_nest(
            nest, dense, dtype=dtype, index_dtype=index_dtype, form=form
        )
        return compile_kernel(unit, open_device("host"))

    kernel: CompiledKernel = get_remembered(Calls).sparse.get(key, make)
    return kernel


ENTRY = "entry of the sparse operand"
"""Name of the index over entries; indices of calls cannot contain spaces."""
MAX_BYTES = 1 << 26
"""Maximum bytes that are gathered of one operand at once."""


def get_any_tree(operand: COO | CSF | tuple[CSF, ...]) -> CSF:
    """Return a tree of a sparse operand; the first of several trees."""
    return to_csf(operand[0] if isinstance(operand, tuple) else operand)


def evaluate_entries(
    network: Network, arrays: list[Any], sizes: Sizes, dtype: np.dtype[Any]
) -> Any:
    """Compute a network by numpy from the coordinates of its sparse operand.

    Args:
        network: the einsum with one sparse operand.
        arrays: the operands; the sparse one is a tree with the levels of the network.
        sizes: extent of each index.
        dtype: dtype of the result.

    Returns:
        The values of a sparse result, ``[nnz]``, or the dense result.
    """
    tree = arrays[network.sparse or 0]
    entries = to_coo(tree)
    term = network.inputs[network.sparse or 0]
    columns = dict(zip(term, entries.indices, strict=True))
    output = tuple(i for i in network.output if i not in columns)
    if network.has_sparse_output:
        result = np.empty(entries.nnz, dtype)
    else:
        result = np.zeros([sizes.extents[i] for i in network.output], dtype)
    # in chunks, since gathered operands have a row for each entry
    for chunk in _split_entries(network, sizes, entries.nnz, dtype):
        chunk_columns = {index: column[chunk] for index, column in columns.items()}
        operands = [entries.values if x is tree else x for x in arrays]
        products = _compute_products(network, operands, chunk, chunk_columns, output)
        if network.has_sparse_output:
            result[chunk] = products
        else:
            subscripts = [chunk_columns.get(i, slice(None)) for i in network.output]
            _add(result, subscripts, products)
    return result


def _split_entries(
    network: Network, sizes: Sizes, nnz: int, dtype: np.dtype[Any]
) -> Iterator[slice]:
    """Yield chunks of entries, so that gathered operands take little memory."""
    sparse = {*network.inputs[network.sparse or 0]}
    terms = [*network.inputs, network.output]
    row_sizes = (prod(sizes.extents[i] for i in {*term} - sparse) for term in terms)
    # at least one entry, even if its row is larger than the limit
    n = max(1, MAX_BYTES // (dtype.itemsize * max(1, *row_sizes)))
    for begin in range(0, nnz, n):
        yield slice(begin, begin + n)


def _compute_products(
    network: Network,
    arrays: list[Any],
    chunk: slice,
    columns: dict[str, Any],
    output: IndexList,
) -> Any:
    """Compute the products of entries, as an array ``[entry, *output]``."""
    terms: list[IndexList] = []
    operands = []
    for position, (term, array) in enumerate(zip(network.inputs, arrays, strict=True)):
        if position == network.sparse:
            terms.append((ENTRY,))
            operands.append(array[chunk])
            continue
        shared = [axis for axis, index in enumerate(term) if index in columns]
        dense_indices = tuple(index for index in term if index not in columns)
        first = np.moveaxis(array, shared, range(len(shared)))
        terms.append((ENTRY, *dense_indices) if shared else dense_indices)
        # the rows of the operand at the coordinates of the entries
        chosen = tuple(columns[term[axis]] for axis in shared)
        operands.append(first[chosen] if shared else array)
    extents = {
        index: n
        for term, array in zip(terms, operands, strict=True)
        for index, n in zip(term, array.shape, strict=True)
    }
    path = find_path(terms, (ENTRY, *output), extents)
    return evaluate_in_steps(terms, (ENTRY, *output), operands, path)


def _add(result: Any, subscripts: list[Any], products: Any) -> None:
    """Add the products of entries to the elements of a result at their coordinates."""
    shared = [
        axis
        for axis, subscript in enumerate(subscripts)
        if not isinstance(subscript, slice)
    ]
    if not shared:
        result += products.sum(axis=0)
        return
    first = np.moveaxis(result, shared, range(len(shared)))
    # unbuffered: several entries may add to one element
    np.add.at(first, tuple(subscripts[axis] for axis in shared), products)
