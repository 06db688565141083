"""Sparse einsums against scipy, numba, and C.

``python benchmarks/sparse.py --scale 0.01`` multiplies sparse tensors by dense
matrices: SpMV, SpMM, MTTKRP and TTMc of the mode at the root of the tree, and TTTc, a
network of six tensors. All contenders of a row are checked, then run in turns, and each
waits until no thread of another one works. ``tensora``, which is TACO in Python, runs
in a process of its own, if an interpreter is named that has it.

``unfactorized`` is our kernel of the nest that multiplies all operands in one loop over
all indices, in the same form. ``operations`` says how many times as many it takes.

``plain C`` is the nest of loops that factors the product, as gcc compiles it with ``-O3
-march=native``; ``SPLATT in C`` is the same with its sums in vectors, by hand, after
Smith et al. 2015, *SPLATT: Efficient and parallel sparse tensor-matrix multiplication*.
Both run on as many threads as we do, over parts of about equally many entries.

Extents and numbers of entries are those of `FROSTT <http://frostt.io/>`_; how many
nodes lie between is assumed. ``--scale`` multiplies numbers of nodes, and its square
root extents, so that fibers keep their lengths and have room.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import pairwise, product
from math import exp, log, prod, sqrt
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.experiments.contest import Watched
from benchmarks.experiments.machine import processor
from feinsum import call_einsum
from feinsum.codegen import (
    generate_nest,
    nest_arguments,
    nest_index_dtype,
    nest_result,
    root_chunks,
)
from feinsum.measure import compile_kernel, interleave
from feinsum.measure.sparse_reference import sparse_reference
from feinsum.nests import (
    Network,
    Operations,
    Sizes,
    choose_form,
    evaluate,
    network,
    postorders,
    sizes_of,
    unfactorized,
)
from feinsum.nests.form import n_chunks_for
from feinsum.predict.machine import machine_of
from feinsum.sparse import CSF, random_profile, random_uniform, to_coo, to_csf
from feinsum.targets.devices import open_device

Array = np.ndarray[Any, np.dtype[Any]]

OURS = "feinsum"
TOLERANCE = {"float32": 1e-4, "float64": 1e-11}


@dataclass(frozen=True)
class Pattern:
    """A tensor of a FROSTT file, or a uniform one, where there is no profile.

    Attributes:
        shape, profile: extents, and nodes at each level.
        density: of a uniform pattern.
    """

    shape: tuple[int, ...]
    profile: tuple[int, ...] = ()
    density: float = 0.0

    def tree(self, scale: float, dtype: str) -> CSF:
        shape = tuple(max(2, round(extent * sqrt(scale))) for extent in self.shape)
        if not self.profile:
            n = max(1, round(self.density * prod(shape)))
            return to_csf(random_uniform(shape, n, seed=0, dtype=dtype))
        nodes: list[int] = []
        for extent, wanted in zip(shape, self.profile, strict=True):
            above = nodes[-1] if nodes else 1
            nodes.append(min(max(above, round(wanted * scale)), above * extent))
        return random_profile(shape, nodes, seed=0, skew=0.8, dtype=dtype)


PATTERNS = {
    "nell-2": Pattern((12_092, 9_184, 28_818), (12_092, 336_000, 76_879_419)),
    "nips": Pattern((2_482, 2_862, 14_036, 17), (2_482, 7_800, 3_101_609, 3_101_609)),
    "enron": Pattern(
        (6_066, 5_699, 244_268, 1_176), (6_066, 260_000, 31_000_000, 54_202_099)
    ),
    "vast": Pattern((165_427, 11_374, 2), (165_427, 21_000_000, 26_021_854)),
    "uniform 1e-4": Pattern((1_000, 900, 800), density=1e-4),
    "uniform 1e-2": Pattern((1_000, 900, 800), density=1e-2),
    "matrix": Pattern((2_000_000, 2_000_000), (2_000_000, 40_000_000)),
}
PATTERNS["order 6"] = Pattern((16,) * 6, density=1e-3)
KERNELS = ("spmv", "spmm", "mttkrp", "ttmc", "tttc")
CHAIN_RANK = 8
"""Of TTTc, whose operands have two ranks each."""
MOST_RESULT_BYTES = 2**29


@dataclass(frozen=True)
class Problem:
    """A kernel on a pattern.

    Attributes:
        subscripts: the tree first.
        factors: the dense operands; of SpMV a vector.
    """

    name: str
    subscripts: str
    tree: CSF
    factors: tuple[Array, ...]

    @property
    def is_mttkrp(self) -> bool:
        """Or SpMV, or SpMM: what libraries have."""
        return self.name not in ("ttmc", "tttc")

    @property
    def network(self) -> Network:
        return network(self.subscripts)

    @property
    def sizes(self) -> Sizes:
        return sizes_of(self.network, [self.tree, *self.factors])

    def reference(self) -> Array:
        """By entries."""
        return sparse_reference(self.network, [self.tree, *self.factors])

    def operations(self) -> float:
        """Those of the unfactorized nest over those of the best path."""
        cost = Operations(self.network, self.sizes)
        nest = unfactorized(self.network)
        least = min(cost.least(path) for path in postorders(self.network))
        return float(evaluate(cost, nest.path, nest.orders)) / least


@dataclass(frozen=True)
class Ready:
    """A contender's function of nothing."""

    call: Callable[[], Any]

    def run(self, _timer: str | None = None) -> float:
        start = perf_counter()
        self.call()
        return perf_counter() - start


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


def plain_c(problem: Problem) -> Callable[[], Array] | None:
    return _in_c(problem, 1) if problem.is_mttkrp else None


def splatt(problem: Problem) -> Callable[[], Array] | None:
    if not problem.is_mttkrp:
        return None
    item = problem.tree.values.itemsize
    lanes = machine_of(open_device("host").device).vector_bytes // item
    rank = _as_rows(problem.factors[0]).shape[1]
    while rank % lanes:
        lanes //= 2
    return _in_c(problem, lanes) if lanes > 1 else None


def one_loop(problem: Problem) -> Callable[[], Array] | None:
    """The unfactorized nest, in vectors and by threads as ours."""
    if problem.name in ("spmv", "spmm"):
        return None
    opened = open_device("host")
    nest, sizes = unfactorized(problem.network), problem.sizes
    dtype, n_threads = problem.tree.values.dtype, opened.device.compute_units
    form = choose_form(
        nest,
        sizes,
        item_bytes=dtype.itemsize,
        vector_bytes=machine_of(opened.device).vector_bytes,
        n_threads=n_threads,
    )
    n_chunks = n_chunks_for(nest, form, sizes, n_threads)
    index_dtype = nest_index_dtype(nest, sizes, form=form, n_chunks=n_chunks)
    made = generate_nest(
        nest, sizes.extents, dtype=dtype, index_dtype=index_dtype, form=form
    )
    kernel = compile_kernel(made, opened)
    operands = [problem.tree, *problem.factors]

    def call() -> Array:
        given = nest_arguments(
            nest, operands, dtype=dtype, form=form, n_chunks=n_chunks
        )
        kernel.built.run(given, kernel.timer)
        return nest_result(nest, form, given["out"], sizes)

    return call


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
        done = subprocess.run(
            [interpreter, script, source, target],
            check=True,
            capture_output=True,
            text=True,
        )
        _check("tensora", np.load(target), problem, TOLERANCE["float64"])
    return float(json.loads(done.stdout))


RIVALS: Mapping[str, Callable[[Problem], Callable[[], Array] | None]] = {
    "scipy": scipy,
    "numba": numba,
    "plain C": plain_c,
    "SPLATT in C": splatt,
    "unfactorized": one_loop,
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
            place = f"out + (int64_t) idx0[n0] * {rank}"
            lines.append(f"{kind} *to = ({kind} *) ({place});")
            target, more = "to[a] =", ""
        lines.append(f"{unroll}for (int a = 0; a < {n}; ++a) {target} {value}{more};")
        lines.append("}")
    return "\n".join([*lines, "}"])


def _in_c(problem: Problem, lanes: int) -> Callable[[], Array]:
    tree, factors = problem.tree, [_as_rows(f) for f in problem.factors]
    item = {4: "float", 8: "double"}[tree.values.itemsize]
    rank = factors[0].shape[1]
    function = _compiled(c_source(tree.order, rank, item, lanes))
    n_threads = open_device("host").device.compute_units
    chunks = root_chunks(tree, n_threads).tolist()
    indices = [np.asarray(x, np.int32) for x in (*tree.indices, *tree.pointers)]
    held = [*indices, *factors]
    table = (ctypes.c_void_p * len(held))(*(array.ctypes.data for array in held))
    pool = ThreadPoolExecutor(n_threads)

    def call() -> Array:
        out = np.zeros((tree.shape[0], rank), factors[0].dtype)
        given = out.ctypes.data, tree.values.ctypes.data, table
        parts = [
            pool.submit(function, first, past, *given)
            for first, past in pairwise(chunks)
        ]
        for part in parts:
            part.result()
        return out.reshape((tree.shape[0], *problem.factors[0].shape[1:]))

    return call


@cache
def _compiled(source: str) -> Any:
    compiler = open_device("host").compiler.command
    with tempfile.TemporaryDirectory() as folder:
        code, built = Path(folder, "kernel.c"), Path(folder, "kernel.so")
        code.write_text(source)
        flags = ("-std=gnu11", "-O3", "-march=native", "-shared", "-fPIC")
        subprocess.run([*compiler, *flags, code, "-o", built], check=True, timeout=120)
        function = ctypes.CDLL(str(built)).mttkrp
    function.argtypes = [ctypes.c_int64] * 2 + [ctypes.c_void_p] * 3
    function.restype = None
    return function


def _as_rows(factor: Array) -> Array:
    return factor.reshape((len(factor), -1))


def make_problem(kernel: str, tree: CSF, rank: int, dtype: str) -> Problem:
    rng = np.random.default_rng(1)
    indices, ranks = "ijklmn"[: tree.order], "rstuv"
    extents = dict(zip(indices, tree.shape, strict=True))
    match kernel:
        case "ttmc":
            terms = [f"{i}{r}" for i, r in zip(indices[1:], ranks, strict=False)]
            output = "i" + ranks[: tree.order - 1]
        case "tttc":
            terms, output = ["ia", "ajb", "bkc", "cld", "dme"], "en"
            ranks, rank = "abcde", CHAIN_RANK
        case _:
            ranks = "" if kernel == "spmv" else "a"
            terms, output = [f"{i}{ranks}" for i in indices[1:]], f"i{ranks}"
    extents |= dict.fromkeys(ranks, rank)
    shapes = [tuple(extents[i] for i in term) for term in terms]
    return Problem(
        kernel,
        f"{indices},{','.join(terms)}->{output}",
        tree,
        tuple(rng.random(shape).astype(dtype) for shape in shapes),
    )


def fits(kernel: str, shape: Pattern, tree: CSF, rank: int) -> bool:
    """Whether a kernel is for a pattern, and the result of a size to be had."""
    order = len(shape.shape)
    if (order == 6) != (kernel == "tttc") or (order == 2) != kernel.startswith("sp"):
        return False
    if kernel == "ttmc":
        n_bytes = tree.values.itemsize * tree.shape[0] * rank ** (order - 1)
        return n_bytes <= MOST_RESULT_BYTES
    return True


def _check(name: str, result: Array, problem: Problem, tolerance: float) -> None:
    expected = problem.reference()
    error = np.abs(result - expected).max() / np.abs(expected).max()
    if not error <= tolerance:
        raise SystemExit(f"{name} is wrong by {error:.1e}: {problem.subscripts}")


def contest(problem: Problem, options: argparse.Namespace) -> dict[str, float]:
    """Median seconds of each contender that there is; all are right."""
    watched = []
    for name, make in ({OURS: ours} | dict(RIVALS)).items():
        call = make(problem)
        if call is None:
            continue
        _check(name, call(), problem, TOLERANCE[options.dtype])
        watched.append(Watched(name, Ready(call), lambda _name: None, 0.005))
    times = interleave(
        watched, rounds=options.rounds, warmup=1, min_total_s=0.0, max_total_s=30.0
    )
    found = {w.name: median(t) for w, t in zip(watched, times, strict=True)}
    if options.tensora and options.dtype == "float64" and problem.name != "spmv":
        found[TENSORA] = tensora_s(problem, options.tensora, min(options.rounds, 3))
    return found


def table_of(results: Sequence[tuple[str, dict[str, float], float]]) -> Table:
    """Milliseconds, and how many times as fast ours is as the best of the rivals."""
    names = (OURS, *RIVALS, TENSORA)
    heads = (f"{name}, ms" for name in names)
    last = "best rival / ours", "operations"
    table = Table("entry", *heads, *last, box=box.MARKDOWN)
    for name, seconds, operations in results:
        cells = (
            f"{seconds[one] * 1e3:.3f}" if one in seconds else "-" for one in names
        )
        table.add_row(name, *cells, f"{ratio(seconds):.2f}", f"{operations:.2f}")
    return table


def ratio(seconds: Mapping[str, float]) -> float:
    return min(s for name, s in seconds.items() if name != OURS) / seconds[OURS]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="entries whose names match")
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--rank", type=int, nargs="*", default=[16, 32, 64])
    parser.add_argument("--dtype", default="float64", choices=sorted(TOLERANCE))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tensora", default="", help="a Python that has tensora")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results = []
    for kernel, (pattern, shape) in product(KERNELS, PATTERNS.items()):
        has_rank = kernel not in ("spmv", "tttc")
        names = {
            rank: f"{kernel} {pattern}" + (f" rank {rank}" if has_rank else "")
            for rank in (options.rank if has_rank else [1])
        }
        chosen = [rank for rank in names if re.search(options.only, names[rank])]
        if not chosen:
            continue
        scale = 1.0 if kernel == "tttc" else options.scale
        tree = shape.tree(scale, options.dtype)
        for rank in chosen:
            if fits(kernel, shape, tree, rank):
                problem = make_problem(kernel, tree, rank, options.dtype)
                found = contest(problem, options)
                results.append((names[rank], found, problem.operations()))
                Console(stderr=True).print(names[rank], found)
    console = Console(width=200)
    console.print(
        f"{processor()}, {open_device('host').device.compute_units} threads, "
        f"{options.dtype}, scale {options.scale:g}"
    )
    console.print(table_of(results))
    if results:
        mean = exp(sum(log(ratio(seconds)) for _, seconds, _ in results) / len(results))
        console.print(f"geometric mean: {mean:.2f} times as fast as the best rival")
    missing = [name for name in ("scipy", "numba") if find_spec(name) is None]
    missing += [] if options.tensora else [TENSORA]
    console.print(f"not installed: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()
