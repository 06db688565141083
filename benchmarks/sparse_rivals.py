"""Who multiplies in the benchmark of sparse einsums."""

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


def ours(problem: Problem) -> Callable[[], Array]:
    return partial(call_einsum, problem.subscripts, problem.tree, *problem.factors)


def scipy(problem: Problem) -> Callable[[], Array] | None:
    """Of matrices; one thread."""
    if not problem.is_mttkrp or problem.tree.order != 2 or find_spec("scipy") is None:
        return None
    from scipy.sparse import csr_array

    entries = to_coo(problem.tree)
    matrix = csr_array((entries.values, entries.indices), shape=problem.tree.shape)
    return lambda: matrix @ problem.factors[0]


def numba(problem: Problem) -> Callable[[], Array] | None:
    """Of order 2 and 3; its own threads."""
    if not problem.is_mttkrp or problem.tree.order > 3 or find_spec("numba") is None:
        return None
    tree, factors = problem.tree, [_as_rows(f) for f in problem.factors]
    kernel = _numba_kernels()[tree.order - 2]

    def call() -> Array:
        out = np.zeros((tree.shape[0], factors[0].shape[1]), factors[0].dtype)
        kernel(*tree.pointers, *tree.indices, tree.values, *factors, out)
        return out.reshape((tree.shape[0], *problem.factors[0].shape[1:]))

    return call


@cache
def _numba_kernels() -> tuple[Any, Any]:
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


def plain_c(problem: Problem) -> Callable[[], Array] | None:
    if problem.name in DOWNWARD:
        return _downward_in_c(problem, 1)
    return _in_c(problem, 1) if problem.is_mttkrp else None


def splatt(problem: Problem) -> Callable[[], Array] | None:
    if not (problem.is_mttkrp or problem.name in DOWNWARD):
        return None
    in_c = _downward_in_c if problem.name in DOWNWARD else _in_c
    item = problem.tree.values.itemsize
    lanes = model_machine(open_device("host").device).vector_bytes // item
    rank = _as_rows(problem.factors[0]).shape[1]
    while rank % lanes:
        lanes //= 2
    return in_c(problem, lanes) if lanes > 1 else None


def one_loop(problem: Problem) -> Callable[[], Array] | None:
    """The unfactorized nest, in vectors and by threads as ours."""
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
    made = generate_nest(
        nest, sizes.extents, dtype=dtype, index_dtype=index_dtype, form=form
    )
    nest_kernel = NestKernel(nest, form, n_chunks, compile_kernel(made, opened))
    ready = bind_tree(problem.network, problem.tree, sizes, dtype, nest_kernel)
    return partial(ready.run, [problem.tree, *problem.factors])


def tensora_s(problem: Problem, interpreter: str, rounds: int) -> float:
    """The seconds of tensora, whose result is checked."""
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
"""Our kernel of another nest: no rival."""

RIVALS: Mapping[str, Callable[[Problem], Callable[[], Array] | None]] = {
    "scipy": scipy,
    "numba": numba,
    "plain C": plain_c,
    "SPLATT in C": splatt,
    UNFACTORIZED: one_loop,
}
TENSORA = "tensora"


def c_source(order: int, rank: int, item: str, lanes: int) -> str:
    """MTTKRP of the mode at the root, with a sum for each level.

    >>> "v4 sum0[8]" in c_source(3, 32, "double", 4)
    True
    """
    kind, n = (f"v{lanes}", rank // lanes) if lanes > 1 else (item, rank)
    size = lanes * (4 if item == "float" else 8)
    unroll = "\n#pragma GCC unroll 64\n" if lanes > 1 else ""
    vectors = f"vector_size({size}), aligned({size // lanes}), may_alias"
    head = f"int64_t first, int64_t past, {item} *restrict out, const {item} *values"
    lines = ["#include <stdint.h>"]
    if lanes > 1:
        lines.append(f"typedef {item} {kind} __attribute__(({vectors}));")
    lines.append(f"void mttkrp({head}, const void *const *table) {{")
    names = [f"idx{level}" for level in range(order)]
    names += [f"ptr{level}" for level in range(order - 1)]
    lines += [f"const int32_t *{name} = table[{k}];" for k, name in enumerate(names)]
    lines += [
        f"const {item} *f{level} = table[{len(names) + level - 1}];"
        for level in range(1, order)
    ]
    for level in range(order):
        begin, end = "first", "past"
        if level:
            begin, end = (
                f"ptr{level - 1}[n{level - 1}{more}]" for more in ("", " + 1")
            )
        lines.append(
            f"for (int64_t n{level} = {begin}; n{level} < {end}; ++n{level}) {{"
        )
        if level:
            row = f"f{level} + (int64_t) idx{level}[n{level}] * {rank}"
            lines.append(f"const {kind} *row{level} = (const {kind} *) ({row});")
        if level < order - 1:
            lines.append(f"{kind} sum{level}[{n}] = {{0}};")
    for level in reversed(range(order)):
        value = f"values[n{level}]" if level == order - 1 else f"sum{level}[a]"
        target, more = f"sum{level - 1}[a] +=", f" * row{level}[a]"
        if level == 0:
            address = f"out + (int64_t) idx0[n0] * {rank}"
            lines.append(f"{kind} *to = ({kind} *) ({address});")
            target, more = "to[a] =", ""
        lines.append(f"{unroll}for (int a = 0; a < {n}; ++a) {target} {value}{more};")
        lines.append("}")
    return "\n".join([*lines, "}"])


def downward_source(order: int, rank: int, item: str, lanes: int, kernel: str) -> str:
    """MTTKRP of the mode at the leaves, or TTTP, with a product for each level.

    >>> "product1[8]" in downward_source(3, 32, "double", 4, "tttp")
    True
    """
    kind, n = (f"v{lanes}", rank // lanes) if lanes > 1 else (item, rank)
    size = lanes * (4 if item == "float" else 8)
    unroll = "\n#pragma GCC unroll 64\n" if lanes > 1 else ""
    vectors = f"vector_size({size}), aligned({size // lanes}), may_alias"
    head = f"int64_t first, int64_t past, {item} *restrict out, const {item} *values"
    lines = ["#include <stdint.h>"]
    if lanes > 1:
        lines.append(f"typedef {item} {kind} __attribute__(({vectors}));")
    lines.append(f"void mttkrp({head}, const void *const *table) {{")
    names = [f"idx{level}" for level in range(order)]
    names += [f"ptr{level}" for level in range(order - 1)]
    lines += [f"const int32_t *{name} = table[{k}];" for k, name in enumerate(names)]
    n_factors = order if kernel == "tttp" else order - 1
    lines += [
        f"const {item} *f{level} = table[{len(names) + level}];"
        for level in range(n_factors)
    ]
    last, above = order - 1, ""
    each = f"{unroll}for (int a = 0; a < {n}; ++a)"
    for level in range(order):
        begin, end = "first", "past"
        if level:
            begin, end = (
                f"ptr{level - 1}[n{level - 1}{more}]" for more in ("", " + 1")
            )
        lines.append(
            f"for (int64_t n{level} = {begin}; n{level} < {end}; ++n{level}) {{"
        )
        offset = f"(int64_t) idx{level}[n{level}] * {rank}"
        if level < n_factors:
            lines.append(
                f"const {kind} *row{level} = (const {kind} *) (f{level} + {offset});"
            )
        if level < last:
            lines.append(f"{kind} product{level}[{n}];")
            lines.append(f"{each} product{level}[a] = {above}row{level}[a];")
            above = f"product{level}[a] * "
    if kernel == "tttp":
        lines.append(f"{kind} sum = {{0}};")
        lines.append(f"{each} sum += {above}row{last}[a];")
        terms = [f"sum[{k}]" for k in range(lanes)] if lanes > 1 else ["sum"]
        lines.append(f"out[n{last}] = values[n{last}] * ({' + '.join(terms)});")
    else:
        lines.append(f"{kind} *to = ({kind} *) (out + {offset});")
        lines.append(f"{each} to[a] += {above}values[n{last}];")
    return "\n".join([*lines, "}" * order, "}"])


def _downward_in_c(problem: Problem, lanes: int) -> Callable[[], Array]:
    tree, factors = problem.tree, problem.factors
    item = {4: "float", 8: "double"}[tree.values.itemsize]
    rank, is_tttp = factors[0].shape[1], problem.name == "tttp"
    # sums of lanes in any order, as ours
    source = downward_source(tree.order, rank, item, lanes, problem.name)
    function = _compiled(source, "-ffast-math")
    n_threads = open_device("host").device.compute_units
    chunks = split_root(tree, n_threads).tolist()
    indices = [np.asarray(x, np.int32) for x in (*tree.indices, *tree.pointers)]
    arrays = [*indices, *factors]
    table = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    pool = ThreadPoolExecutor(n_threads)
    n_rows = tree.shape[tree.axes[-1]]

    def call() -> Array:
        # entries of TTTP are apart; rows of MTTKRP may get terms from all threads
        shape = (1, tree.nnz) if is_tttp else (len(chunks) - 1, n_rows, rank)
        outs = np.zeros(shape, factors[0].dtype)
        parts = [
            pool.submit(function, *bounds, out.ctypes.data, tree.values.ctypes.data,
                        table)
            for bounds, out in zip(pairwise(chunks), cycle(outs), strict=False)
        ]  # fmt: skip
        for part in parts:
            part.result()
        return outs[0] if len(outs) == 1 else outs.sum(axis=0)

    return call


def _in_c(problem: Problem, lanes: int) -> Callable[[], Array]:
    tree, factors = problem.tree, [_as_rows(f) for f in problem.factors]
    item = {4: "float", 8: "double"}[tree.values.itemsize]
    rank = factors[0].shape[1]
    function = _compiled(c_source(tree.order, rank, item, lanes))
    n_threads = open_device("host").device.compute_units
    chunks = split_root(tree, n_threads).tolist()
    indices = [np.asarray(x, np.int32) for x in (*tree.indices, *tree.pointers)]
    arrays = [*indices, *factors]
    table = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    pool = ThreadPoolExecutor(n_threads)

    def call() -> Array:
        out = np.zeros((tree.shape[0], rank), factors[0].dtype)
        pointers = out.ctypes.data, tree.values.ctypes.data, table
        parts = [
            pool.submit(function, first, past, *pointers)
            for first, past in pairwise(chunks)
        ]
        for part in parts:
            part.result()
        return out.reshape((tree.shape[0], *problem.factors[0].shape[1:]))

    return call


@cache
def _compiled(source: str, *more_flags: str) -> Any:
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


def _as_rows(factor: Array) -> Array:
    return factor.reshape((len(factor), -1))
