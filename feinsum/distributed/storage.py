"""Arrays of ranks, dense or sparse, and their parts by boxes.

A rank holds a box of a tensor: a numpy array, or the entries of a sparse tensor there,
with indices local to the box. Every other row and the columns 2 to 5 of a matrix::

    A              0 1 2 3 4 5      box (range(0, 4, 2), range(2, 6))
    i = 0          . . 7 . . 8      entries  (0, 2): 7   (0, 5): 8   (2, 3): 6
    i = 1          9 . . . . .      local    (0, 0): 7   (0, 3): 8   (1, 1): 6
    i = 2          . . . 6 . .
    i = 3          . 5 . . . .

Entries never move between ranks. Cyclic parts spread dense regions over all of them.

Buffers of a rank are where its blocks are: on the host, or on a GPU as arrays of CuPy.
Leaves, sums and copies then run on the GPU, by the functions of numpy that CuPy
implements, and messages go from GPU to GPU if MPI can read their memory, else through
the host. Arrays of other libraries are converted by ``cupy.from_dlpack``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box, get_box_shape
from feinsum.errors import InvalidSparseArrayError, PlanError
from feinsum.extras import require_extra
from feinsum.sparse import COO, CSC, CSF, CSR, from_object, to_coo, to_csf, to_dense
from feinsum.sparse import is_sparse as is_sparse_array

Stored: TypeAlias = NDArray[Any] | COO
"""A dense array, of numpy or on a GPU of CuPy, or the entries of a sparse one."""


def as_stored(value: Any, *, is_sparse: bool) -> Stored:
    """Convert an array to one of the two stored forms; accepts all sparse formats.

    Raises:
        PlanError: with the rule ``blocks``, if it should be sparse, and is not, or the
            reverse.
    """
    if is_sparse_array(value) and not is_sparse:
        raise PlanError(
            "a sparse array, whose operand was planned as a dense one: pass nonzeros= "
            "to plan it as sparse, or feinsum.sparse.to_dense(array) here",
            rules=("blocks",),
        )
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


# ---- arrays of CuPy in the memory of GPUs

_QUERIES = ("MPIX_Query_cuda_support", "MPIX_GPU_query_support")
"""Functions of Open MPI and of MPICH that report whether they read memory of GPUs."""

_MPICH_CUDA = 0
"""``MPIX_GPU_SUPPORT_CUDA`` of MPICH."""


def is_on_gpu(value: Any) -> bool:
    """Return whether an array is in the memory of a GPU."""
    return hasattr(value, "__cuda_array_interface__")


def check_gpu_array(value: Any) -> Any:
    """Return an array on a GPU, which must be CuPy's.

    Raises:
        PlanError: with the rule ``blocks``, for an array of another library.
    """
    # what buffers need of it: numpy's functions, and copies to the host
    if not (hasattr(value, "get") and hasattr(value, "__array_function__")):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise PlanError(
            f"a block on a GPU is a {kind}; plans take arrays of CuPy there: convert "
            "it by cupy.from_dlpack(block)",
            rules=("blocks",),
        )
    return value


def make_prototype(block: Any = None) -> Any:
    """Return an empty array on the GPU of a block; by default, on the current one.

    Arrays made ``like`` it are on that GPU, and it keeps no block alive.

    Raises:
        PlanError: with the rule ``gpu``, if no block is given and CuPy is missing.
    """
    if block is not None:
        return np.empty(0, like=block)
    refusal = partial(PlanError, rules=("gpu",))
    with require_extra("cupy", "cuda", "a plan with blocks on GPUs", refusal):
        import cupy
    return cupy.empty(0)


def find_prototype(arrays: Mapping[str, Any], owner: str) -> Any:
    """Return an empty array on the GPU that has all arrays; None if the host has them.

    Args:
        arrays: blocks or operands by name.
        owner: whose arrays they are, for the message.

    Raises:
        PlanError: with the rule ``blocks``, if only some are on a GPU.
    """
    on_gpu = [name for name, array in arrays.items() if is_on_gpu(array)]
    if not on_gpu:
        return None
    on_host = [name for name in arrays if name not in on_gpu]
    if on_host:
        raise PlanError(
            f"{owner}: {', '.join(on_gpu)} on a GPU, {', '.join(on_host)} on the host; "
            "pass all of them on the GPU (cupy.asarray), or none",
            rules=("blocks",),
        )
    return make_prototype(arrays[on_gpu[0]])


def to_host(array: Any) -> Any:
    """Copy an array from a GPU to the host; others are returned as they are."""
    return array.get() if is_on_gpu(array) else array


def get_free_gpu_bytes(array: Any) -> int:
    """Return the free memory of the GPU of an array."""
    free, _total = array.device.mem_info
    return int(free)


def synchronize(array: Any) -> None:
    """Wait for the GPU of an array; on the host, nothing is under way."""
    if is_on_gpu(array):
        array.device.synchronize()


@cache
def is_mpi_cuda_aware() -> bool:
    """Return whether the loaded MPI sends from memory of GPUs, as far as it reports."""
    library = ctypes.CDLL(None)
    open_mpi, mpich = (getattr(library, name, None) for name in _QUERIES)
    if open_mpi is not None:
        return bool(open_mpi())
    if mpich is None:
        return False
    is_supported = ctypes.c_int(0)
    return mpich(_MPICH_CUDA, ctypes.byref(is_supported)) == 0 and bool(is_supported)
