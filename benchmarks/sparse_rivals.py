"""The contenders of the benchmark of sparse einsums."""

from __future__ import annotations

import ctypes
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.util import find_spec
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sparse_problems import Array, Problem
from feinsum import call_einsum
from feinsum.calling.sparse.ready import NestKernel, bind_tree
from feinsum.codegen import choose_nest_index_dtype, generate_nest, split_root
from feinsum.measure import compile_kernel
from feinsum.nests import (
    build_unfactorized,
    choose_form,
)
from feinsum.nests.form import choose_n_chunks
from feinsum.predict.machine import model_machine
from feinsum.sparse import to_coo
from feinsum.targets.devices import open_device


def prepare_ours(problem: Problem) -> Callable[[], Array]:
    return partial(call_einsum, problem.subscripts, problem.tree, *problem.factors)


def prepare_scipy(problem: Problem) -> Callable[[], Array] | None:
    """Multiply matrices by scipy, with one thread."""
    matrix = _make_csr(problem)
    return None if matrix is None else lambda: matrix @ problem.factors[0]


def prepare_torch(problem: Problem) -> Callable[[], Array] | None:
    """Multiply matrices by torch, with its threads."""
    matrix = None if find_spec("torch") is None else _make_csr(problem)
    if matrix is None:
        return None
    from torch import from_numpy, sparse_csr_tensor

    parts = map(from_numpy, (matrix.indptr, matrix.indices, matrix.data))
    matrix_of_torch = sparse_csr_tensor(*parts, size=matrix.shape)
    dense = from_numpy(_reshape_to_rows(problem.factors[0]))
    shape = (matrix.shape[0], *problem.factors[0].shape[1:])
    return lambda: (matrix_of_torch @ dense).numpy().reshape(shape)


def _make_csr(problem: Problem) -> Any:
    """Return a matrix in compressed rows; None for a tensor, or without scipy."""
    if not problem.is_mttkrp or problem.tree.order != 2 or find_spec("scipy") is None:
        return None
    from scipy.sparse import csr_array

    entries = to_coo(problem.tree)
    return csr_array((entries.values, entries.indices), shape=problem.tree.shape)


def prepare_numba(problem: Problem) -> Callable[[], Array] | None:
    """Multiply tensors of order 2 and 3 by numba, with its threads."""
    if not problem.is_mttkrp or problem.tree.order > 3 or find_spec("numba") is None:
        return None
    tree, factors = problem.tree, [_reshape_to_rows(f) for f in problem.factors]
    kernel = _compile_numba_kernels()[tree.order - 2]

    def call() -> Array:
        out = np.zeros((tree.shape[0], factors[0].shape[1]), factors[0].dtype)
        kernel(*tree.pointers, *tree.indices, tree.values, *factors, out)
        return out.reshape((tree.shape[0], *problem.factors[0].shape[1:]))

    return call


@cache
def _compile_numba_kernels() -> tuple[Any, Any]:
    from numba import njit, prange

    @njit(parallel=True, fastmath=True)
    def matrix(ptr, rows, cols, values, factor, out):  # type: ignore[no-untyped-def]
        for p in prange(len(rows)):
            row = out[rows[p]]
            for q in range(ptr[p], ptr[p + 1]):
                value, column = values[q], cols[q]
                for a in range(factor.shape[1]):
                    row[a] += value * factor[column, a]

    @njit(parallel=True, fastmath=True)
    def tensor(ptr0, ptr1, i, j, k, values, b, c, out):  # type: ignore[no-untyped-def]
        rank = b.shape[1]
        for p in prange(len(i)):
            fiber = np.empty(rank, b.dtype)
            row = out[i[p]]
            for q in range(ptr0[p], ptr0[p + 1]):
                fiber[:] = 0
                for r in range(ptr1[q], ptr1[q + 1]):
                    value, last = values[r], k[r]
                    for a in range(rank):
                        fiber[a] += value * c[last, a]
                middle = j[q]
                for a in range(rank):
                    row[a] += fiber[a] * b[middle, a]

    return matrix, tensor


DOWNWARD = ("mttkrp-leaf", "tttp")
"""Kernels that multiply rows on the way from the root to the leaves."""


def prepare_plain_c(problem: Problem) -> Callable[[], Array] | None:
    return _prepare_c(problem, 1) if _is_in_c(problem) else None


def prepare_splatt(problem: Problem) -> Callable[[], Array] | None:
    if not _is_in_c(problem):
        return None
    item = problem.tree.values.itemsize
    lanes = model_machine(open_device("host").device).vector_bytes // item
    rank = _reshape_to_rows(problem.factors[0]).shape[1]
    while rank % lanes:
        lanes //= 2
    return _prepare_c(problem, lanes) if lanes > 1 else None


def _is_in_c(problem: Problem) -> bool:
    return problem.is_mttkrp or problem.name in DOWNWARD


def prepare_unfactorized(problem: Problem) -> Callable[[], Array] | None:
    """Run the unfactorized nest, vectorized and parallel as ours."""
    if problem.name in ("spmv", "spmm"):
        return None
    opened = open_device("host")
    nest, sizes = build_unfactorized(problem.network), problem.sizes
    dtype, n_threads = problem.tree.values.dtype, opened.device.compute_units
    form = choose_form(
        nest,
        sizes,
        item_bytes=dtype.itemsize,
        vector_bytes=model_machine(opened.device).vector_bytes,
        n_threads=n_threads,
    )
    n_chunks = choose_n_chunks(nest, form, sizes, n_threads)
    index_dtype = choose_nest_index_dtype(nest, sizes)
    kernel = generate_nest(
        nest, sizes.extents, dtype=dtype, index_dtype=index_dtype, form=form
    )
    nest_kernel = NestKernel(nest, form, n_chunks, compile_kernel(kernel, opened))
    ready = bind_tree(problem.network, problem.tree, sizes, dtype, nest_kernel)
    return partial(ready.run, [problem.tree, *problem.factors])


def time_tensora(problem: Problem, interpreter: str, rounds: int) -> float:
    """Time tensora, and check its result."""
    entries = to_coo(problem.tree)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "given.npz"), Path(folder, "result.npy")
        columns = {f"level{k}": column for k, column in enumerate(entries.indices)}
        factors = {f"factor{k}": factor for k, factor in enumerate(problem.factors)}
        np.savez(
            source,
            subscripts=problem.subscripts,
            values=entries.values,
            shape=problem.tree.shape,
            rounds=rounds,
            **columns,
            **factors,
        )
        script = Path(__file__).with_name("sparse_tensora.py")
        completed = subprocess.run(
            [interpreter, script, source, target],
            check=True,
            capture_output=True,
            text=True,
        )
        problem.check(TENSORA, np.load(target))
    return float(json.loads(completed.stdout))


UNFACTORIZED = "unfactorized"
"""Our kernel of another nest, which is no rival."""

RIVALS: Mapping[str, Callable[[Problem], Callable[[], Array] | None]] = {
    "scipy": prepare_scipy,
    "torch": prepare_torch,
    "numba": prepare_numba,
    "plain C": prepare_plain_c,
    "SPLATT in C": prepare_splatt,
    UNFACTORIZED: prepare_unfactorized,
}
TENSORA = "tensora"


def _begin_source(
    order: int, rank: int, item: str, lanes: int, levels: range
) -> tuple[list[str], str, str]:
    """Return the first lines, the type of a vector, and the loop over vectors.

    Args:
        order: levels of the tree.
        rank: columns of each factor.
        item: type of entries.
        lanes: lanes of a vector; 1 for none.
        levels: the levels that have a factor.
    """
    kind, n = (f"v{lanes}", rank // lanes) if lanes > 1 else (item, rank)
    size = lanes * (4 if item == "float" else 8)
    unroll = "\n#pragma GCC unroll 64\n" if lanes > 1 else ""
    vectors = f"vector_size({size}), aligned({size // lanes}), may_alias"
    head = f"int64_t first, int64_t past, {item} *restrict out, const {item} *values"
    names = [f"const int32_t *idx{level}" for level in range(order)]
    names += [f"const int32_t *ptr{level}" for level in range(order - 1)]
    names += [f"const {item} *f{level}" for level in levels]
    lines = ["#include <stdint.h>", f"enum {{ N = {n} }};"]
    if lanes > 1:
        lines.append(f"typedef {item} {kind} __attribute__(({vectors}));")
    lines.append(f"void mttkrp({head}, const void *const *table) {{")
    lines += [f"{name} = table[{k}];" for k, name in enumerate(names)]
    return lines, kind, f"{unroll}for (int a = 0; a < N; ++a)"


def _open_loop(level: int) -> str:
    """Return the head of the loop over the nodes of a level."""
    above = f"ptr{level - 1}[n{level - 1}"
    begin, end = (f"{above}]", f"{above} + 1]") if level else ("first", "past")
    return f"for (int64_t n{level} = {begin}; n{level} < {end}; ++n{level}) {{"


def _find_row(array: str, level: int, rank: int, kind: str) -> str:
    """Return the address of a row, as vectors."""
    return f"({kind} *) ({array} + (int64_t) idx{level}[n{level}] * {rank})"


def write_upward_source(order: int, rank: int, item: str, lanes: int) -> str:
    """Write MTTKRP of the root mode, with a sum for each level.

    >>> "v4 sum0[N]" in write_upward_source(3, 32, "double", 4)
    True
    """
    lines, kind, each = _begin_source(order, rank, item, lanes, range(1, order))
    for level in range(order):
        lines.append(_open_loop(level))
        if level:
            row = _find_row(f"f{level}", level, rank, f"const {kind}")
            lines.append(f"const {kind} *row{level} = {row};")
        if level < order - 1:
            lines.append(f"{kind} sum{level}[N] = {{0}};")
    for level in reversed(range(order)):
        value = f"values[n{level}]" if level == order - 1 else f"sum{level}[a]"
        target, more = f"sum{level - 1}[a] +=", f" * row{level}[a]"
        if level == 0:
            lines.append(f"{kind} *to = {_find_row('out', 0, rank, kind)};")
            target, more = "to[a] =", ""
        lines.append(f"{each} {target} {value}{more};")
        lines.append("}")
    return "\n".join([*lines, "}"])


def write_downward_source(
    order: int, rank: int, item: str, lanes: int, kernel: str
) -> str:
    """Write MTTKRP of the leaf mode, or TTTP, with a product for each level.

    >>> "product1[N]" in write_downward_source(3, 32, "double", 4, "tttp")
    True
    """
    last, above = order - 1, ""
    levels = range(order if kernel == "tttp" else last)
    lines, kind, each = _begin_source(order, rank, item, lanes, levels)
    for level in range(order):
        lines.append(_open_loop(level))
        if level in levels:
            row = _find_row(f"f{level}", level, rank, f"const {kind}")
            lines.append(f"const {kind} *row{level} = {row};")
        if level < last:
            lines.append(f"{kind} product{level}[N];")
            lines.append(f"{each} product{level}[a] = {above}row{level}[a];")
            above = f"product{level}[a] * "
    if kernel == "tttp":
        lines.append(f"{kind} sum = {{0}};")
        lines.append(f"{each} sum += {above}row{last}[a];")
        terms = [f"sum[{k}]" for k in range(lanes)] if lanes > 1 else ["sum"]
        lines.append(f"out[n{last}] = values[n{last}] * ({' + '.join(terms)});")
    else:
        lines.append(f"{kind} *to = {_find_row('out', last, rank, kind)};")
        lines.append(f"{each} to[a] += {above}values[n{last}];")
    return "\n".join([*lines, "}" * order, "}"])


def _prepare_c(problem: Problem, lanes: int) -> Callable[[], Array]:
    tree, factors = problem.tree, [_reshape_to_rows(f) for f in problem.factors]
    item = {4: "float", 8: "double"}[tree.values.itemsize]
    rank, kernel = factors[0].shape[1], problem.name
    chunks = split_root(tree, open_device("host").device.compute_units).tolist()
    n_outs = 1
    if kernel in DOWNWARD:
        # sums of lanes in any order, as ours
        source = write_downward_source(tree.order, rank, item, lanes, kernel)
        function = _compile_source(source, "-ffast-math")
        shape: tuple[int, ...] = (tree.nnz,)
        if kernel != "tttp":  # threads may add to the same rows of MTTKRP
            shape, n_outs = (tree.shape[tree.axes[-1]], rank), len(chunks) - 1
    else:
        function = _compile_source(write_upward_source(tree.order, rank, item, lanes))
        shape = (tree.shape[0], *problem.factors[0].shape[1:])
    indices = [np.asarray(x, np.int32) for x in (*tree.indices, *tree.pointers)]
    arrays = [*indices, *factors]
    table = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    pool = ThreadPoolExecutor(len(chunks) - 1)

    def call() -> Array:
        outs = np.zeros((n_outs, *shape), factors[0].dtype)
        parts = [
            pool.submit(
                function, *bounds, out.ctypes.data, tree.values.ctypes.data, table
            )
            for bounds, out in zip(pairwise(chunks), cycle(outs), strict=False)
        ]
        for part in parts:
            part.result()
        return outs[0] if n_outs == 1 else outs.sum(axis=0)

    return call


@cache
def _compile_source(source: str, *more_flags: str) -> Any:
    compiler = open_device("host").compiler.command
    with tempfile.TemporaryDirectory() as folder:
        code, built = Path(folder, "kernel.c"), Path(folder, "kernel.so")
        code.write_text(source)
        flags = "-std=gnu11", "-O3", "-march=native", "-shared", "-fPIC", *more_flags
        subprocess.run([*compiler, *flags, code, "-o", built], check=True, timeout=120)
        function = ctypes.CDLL(str(built)).mttkrp
    function.argtypes = [ctypes.c_int64] * 2 + [ctypes.c_void_p] * 3
    function.restype = None
    return function


def _reshape_to_rows(factor: Array) -> Array:
    return factor.reshape((len(factor), -1))
