"""Arrays of ranks, dense or sparse, and their parts by boxes.

A rank holds a box of a tensor: a numpy array, or the entries of a sparse tensor there,
with indices local to the box. Every other row and the columns 2 to 5 of a matrix::

    A              0 1 2 3 4 5      box (range(0, 4, 2), range(2, 6))
    i = 0          . . 7 . . 8      entries  (0, 2): 7   (0, 5): 8   (2, 3): 6
    i = 1          9 . . . . .      local    (0, 0): 7   (0, 3): 8   (1, 1): 6
    i = 2          . . . 6 . .
    i = 3          . 5 . . . .

Entries never move between ranks. Cyclic parts spread dense regions over all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from string import ascii_letters
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box, get_box_shape
from feinsum.distributed.gpu_memory import check_gpu_array, is_on_gpu
from feinsum.errors import InvalidSparseArrayError, PlanError
from feinsum.sparse import COO, CSC, CSF, CSR, from_object, to_coo, to_csf, to_dense

Stored: TypeAlias = NDArray[Any] | COO
"""A dense array, of numpy or on a GPU of CuPy, or the entries of a sparse one."""


def as_stored(value: Any, *, is_sparse: bool) -> Stored:
    """Convert an array to one of the two stored forms; accepts all sparse formats.

    Raises:
        PlanError: with the rule ``blocks``, if it should be sparse, and is not.
    """
    if not is_sparse:
        return check_gpu_array(value) if is_on_gpu(value) else np.asarray(value)
    if isinstance(value, COO | CSR | CSC | CSF):
        return to_coo(value)
    try:
        return from_object(value)
    except InvalidSparseArrayError as error:
        raise PlanError(f"a sparse operand: {error}", rules=("blocks",)) from None


def get_dtype(array: Stored) -> np.dtype[Any]:
    """Return the dtype of the entries."""
    return array.values.dtype if isinstance(array, COO) else array.dtype


def count_stored_bytes(array: Stored) -> int:
    """Return the bytes of an array, with the indices of a sparse one."""
    if isinstance(array, COO):
        return sum(column.nbytes for column in (array.values, *array.indices))
    return array.nbytes


def make_array(
    box: Box, dtype: Any, fill: Any, *, is_sparse: bool, like: Any = None
) -> Stored:
    """Make an array for a box; a sparse one has no entries.

    Args:
        box: the box to store.
        dtype: dtype of the elements.
        fill: value of every element; None if it does not matter.
        is_sparse: whether the array is sparse.
        like: an array in the memory that a dense one is made in; by default the host's.
    """
    if is_sparse:
        columns = tuple(np.empty(0, np.int64) for _ in box)
        return COO(get_box_shape(box), columns, np.empty(0, dtype))
    if fill is None:
        return np.empty(get_box_shape(box), dtype, like=like)
    return np.full(get_box_shape(box), fill, dtype, like=like)


def take_box(array: Stored, box: Box) -> Any:
    """Return the part of an array in a box: a view, or the entries of a sparse array.

    >>> A = COO((4, 6), ([0, 0, 2], [2, 5, 3]), [7.0, 8.0, 6.0])
    >>> take_box(A, (range(0, 4, 2), range(2, 6))).indices[1].tolist()
    [0, 3, 1]
    """
    if not isinstance(array, COO):
        return array[get_slices(box)]
    if box == tuple(map(range, array.shape)):
        return array
    is_inside = np.ones(array.nnz, bool)
    columns = []
    for index, side in zip(array.indices, box, strict=True):
        offset = index - side.start
        is_inside &= (offset >= 0) & (index < side.stop) & (offset % side.step == 0)
        columns.append(offset // side.step)
    local = tuple(column[is_inside] for column in columns)
    return COO(get_box_shape(box), local, array.values[is_inside])


def join_parts(
    shape: tuple[int, ...],
    dtype: Any,
    parts: Iterable[tuple[Box, Any]],
    *,
    is_sparse: bool,
    like: Any = None,
) -> Any:
    """Join the parts of an array; sparse parts become a tree.

    Args:
        shape: shape of the whole array.
        dtype: dtype of the elements.
        parts: each box with its part.
        is_sparse: whether the parts are sparse.
        like: an array in the memory that has dense parts; by default the host's.
    """
    if not is_sparse:
        array = np.zeros(shape, dtype, like=like)
        for box, part in parts:
            array[get_slices(box)] = part
        return array
    values, columns = [np.empty(0, dtype)], [[np.empty(0, np.int64)] for _ in shape]
    for box, part in parts:
        values.append(part.values)
        for column, local, side in zip(columns, part.indices, box, strict=True):
            column.append(local.astype(np.int64) * side.step + side.start)
    indices = tuple(map(np.concatenate, columns))
    return to_csf(COO(shape, indices, np.concatenate(values)))


def as_entries(value: Any, *, is_sparse: bool) -> Any:
    """Convert the result of a leaf to the form of its buffer.

    A call whose result has the indices of its sparse operand returns a tree.
    """
    if is_sparse:
        return to_coo(value)
    return to_dense(value) if isinstance(value, COO | CSF) else value


def get_slices(box: Box) -> tuple[Any, ...]:
    """Return the index expression for a box of an array.

    The ellipsis makes the result an array even for a scalar.

    >>> np.arange(6)[get_slices((range(1, 6, 2),))].tolist()
    [1, 3, 5]
    """
    return (*(slice(side.start, side.stop, side.step) for side in box), ...)


def make_relative(box: Box, around: Box) -> Box:
    """Return a box in the coordinates of a box that contains it.

    >>> make_relative((range(5, 11, 4),), (range(1, 11, 2),))
    (range(2, 5, 2),)
    """
    pairs = zip(box, around, strict=True)
    return tuple(
        range(outer.index(side[0]), outer.index(side[-1]) + 1, side.step // outer.step)
        for side, outer in pairs
    )


def compute_sparse_leaf(subscripts: str, *blocks: Any) -> Any:
    """Compute the reference for one sparse block: numpy, entry by entry.

    The indices of the sparse operand become one index ``z`` over its entries.

    >>> rows = COO((2, 3), ([0, 1, 1], [2, 0, 2]), [5.0, 6.0, 7.0])
    >>> compute_sparse_leaf("ij,ja->ia", rows, np.ones((3, 2))).tolist()
    [[5.0, 5.0], [13.0, 13.0]]
    """
    *terms, output = subscripts.replace("->", ",").split(",")
    sparse_position = next(
        k for k, block in enumerate(blocks) if isinstance(block, COO)
    )
    entries, modes = blocks[sparse_position], terms[sparse_position]
    rows = dict(zip(modes, entries.indices, strict=True))
    z = next(letter for letter in ascii_letters if letter not in subscripts)
    new_terms, arrays = [z], [entries.values]
    extents = dict(zip(modes, entries.shape, strict=True))
    for term, block in zip(terms, blocks, strict=True):
        if block is entries:
            continue
        extents.update(zip(term, block.shape, strict=True))
        shared = [i for i in term if i in rows]
        dense_indices = [i for i in term if i not in rows]
        transposed = block.transpose([term.index(i) for i in (*shared, *dense_indices)])
        new_terms.append(z * bool(shared) + "".join(dense_indices))
        selected = tuple(rows[i] for i in shared)
        arrays.append(transposed[selected] if shared else transposed)
    sparse_indices = [i for i in output if i in rows]
    other_indices = [i for i in output if i not in rows]
    text = f"{','.join(new_terms)}->{z * bool(sparse_indices)}{''.join(other_indices)}"
    values = np.einsum(text, *arrays)
    if not sparse_indices:
        return values
    if sorted(output) == sorted(modes):
        columns = tuple(rows[i] for i in output)
        return COO(tuple(extents[i] for i in output), columns, values)
    order = (*sparse_indices, *other_indices)
    result = np.zeros([extents[i] for i in order], values.dtype)
    np.add.at(result, tuple(rows[i] for i in sparse_indices), values)
    return np.array(result.transpose([order.index(i) for i in output]), order="C")
