"""Times of whole kernels in turns: the user's kernel, and those that may replace it.

The reference is the user's own situation: the given kernel, on arrays of its own shapes
and layouts, compiled as its target compiles it. A replacement has to be faster under
every way of compiling that the user may have ::

    target of the given kernel     the given kernel is compiled        the other one
    lp.ExecutableCTarget           as Loopy does; as feinsum does      as feinsum does
    feinsum's own                  as feinsum does                     as feinsum does
    plain C functions              with PyOP2's options, and with      likewise
                                   feinsum's
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import islpy as isl
import loopy as lp
import numpy as np
from loopy.schedule.tools import get_kernel_arg_info
from loopy.target.c import ExecutableCTarget

from feinsum.dtypes import get_eps, is_inexact
from feinsum.errors import FeinsumError, MeasurementError, WrongResultError
from feinsum.measure.arguments import find_index_bounds
from feinsum.measure.judging import choose_quick_sizes
from feinsum.measure.kernel import generate_for_host
from feinsum.measure.reference import make_reference
from feinsum.measure.verdicts import (
    CompiledHostKernel,
    KernelComparison,
    RandomArgument,
    Verdict,
)
from feinsum.measure.verification import compute_tolerance
from feinsum.raising import RaisedKernel
from feinsum.retrieval.generating import generate_code
from feinsum.retrieval.result import NO_FASTER, NestSelection
from feinsum.select import Ratio, compute_time_ratio
from feinsum.targets.host import HOST, HostDevice
from feinsum.targets.host.code import HostCTarget
from feinsum.targets.host.compiler import compile_once, find_compiler
from feinsum.targets.host.kernel import HostCode, get_pool
from feinsum.targets.layout import compute_layout, get_entry_kernel, infer_types
from feinsum.targets.quiet import quiet
from feinsum.targets.units import LibraryUnit

FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffast-math", "-fPIC", "-shared")
"""PyOP2's compiler options, and those of a library."""
EXECUTABLE_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-w")
"""Options with which ``lp.ExecutableCTarget`` compiles, applied to feinsum's code."""
MAX_BYTES = 1 << 29
"""Maximum bytes of all arrays; larger kernels are not timed."""
EXACTNESS = 0.6
"""Share of the digits that results must have in common, relative to the largest entry.
"""

UNKNOWN_SIZE = 1000
"""Extent of a loop that belongs to no einsum."""
N_CELLS = 1003
"""Cells of a loop over cells; no batch size divides it."""
RAGGED = (37, 53, 41, 67)
"""Primes, longer than most tiles."""

_TABLES = re.compile(r"^  (?=\w+ \w+\[[^;{]*\] = \{)", re.MULTILINE)
"""Tables in the given kernel: other programs make them static, so timings do, too."""


@dataclass(frozen=True)
class KernelTimes:
    """The times of a kernel, and those of the given one in the same rounds.

    Attributes:
        given_s, kernel_s: median times, as the user builds the kernels; zero if the
            results are wrong.
        ratios: the ratio of both times with its interval, for each way of compiling.
    """

    given_s: float
    kernel_s: float
    ratios: tuple[Ratio, ...]

    @property
    def is_right(self) -> bool:
        return bool(self.ratios)

    @property
    def is_faster(self) -> bool:
        """Whether the kernel is certainly faster, however it is compiled."""
        return self.is_right and all(ratio.is_faster for ratio in self.ratios)

    def __str__(self) -> str:
        """Report the gain over the given kernel and both times.

        >>> print(KernelTimes(36e-3, 0.15e-3, (Ratio(240.0, 236.0, 244.0),)))
        240 times as fast as the given kernel (36 ms, 0.15 ms)
        """
        times = f"{self.given_s * 1e3:.3g} ms, {self.kernel_s * 1e3:.3g} ms"
        gain = f"{self.given_s / max(self.kernel_s, 1e-9):.3g}"
        return f"{gain} times as fast as the given kernel ({times})"

    @property
    def failure(self) -> FeinsumError:
        """The reason why it does not replace the given kernel.

        >>> times = KernelTimes(3e-3, 2e-3, (Ratio(1.5, 1.4, 1.6), Ratio(0.9, 0.8, 1)))
        >>> print(times.failure)
        no faster here than the given kernel: 0.90 times as fast (0.80 to 1.00) with
        other options of the compiler, with the usual ones 3 ms as given, 2 ms with it
        """
        if not self.is_right:
            return WrongResultError("its results are not those of the given kernel")
        worst = min(self.ratios, key=lambda ratio: ratio.low)
        is_usual = worst is self.ratios[0]
        options = "" if is_usual else " with other options of the compiler"
        usual = "" if is_usual else "with the usual ones "
        return MeasurementError(
            f"{NO_FASTER}: {worst.median:.2f} times as fast ({worst.low:.2f} to "
            f"{worst.high:.2f}){options}, {usual}{self.given_s * 1e3:.3g} ms as given, "
            f"{self.kernel_s * 1e3:.3g} ms with it"
        )


@dataclass(frozen=True)
class _Source:
    """A program that is being compiled."""

    content: Future[bytes]
    arguments: tuple[tuple[str, str], ...]
    function: str = ""


_Programs = tuple[tuple[_Source, ...], tuple[tuple[tuple[int, int], ...], ...]]
"""Programs; and for each rival, the numbers of the pairs of programs to compare."""


@dataclass(frozen=True)
class TimedKernels:
    """A given kernel and its rivals, whose code is generated.

    Attributes:
        pairs: for each rival, the pairs of programs to compare, by number; the pair
            that is compiled as the user does it comes first.
        checked: arguments of other sizes, at which results are compared, too.
    """

    sources: tuple[_Source, ...]
    pairs: tuple[tuple[tuple[int, int], ...], ...]
    arguments: Mapping[str, RandomArgument]
    tolerance: float
    checked: tuple[Mapping[str, RandomArgument], ...] = ()

    def request(self, compare: Callable[[KernelComparison], Verdict]) -> Verdict:
        """Run all programs in another process, once they are compiled.

        Raises:
            BuildError: if one does not compile.
        """
        with tempfile.TemporaryDirectory(prefix="feinsum-kernels-") as folder:
            written = partial(_write_file, Path(folder))
            programs = tuple(
                CompiledHostKernel(
                    written(f"{k}.so", source.content.result()),
                    source.arguments,
                    source.function,
                )
                for k, source in enumerate(self.sources)
            )
            is_threaded = not all(source.function for source in self.sources)
            threads = written("pool.so", get_pool().content) if is_threaded else ""
            pairs = tuple(pair for own_pairs in self.pairs for pair in own_pairs)
            return compare(
                KernelComparison(
                    threads,
                    programs,
                    pairs,
                    self.arguments,
                    self.tolerance,
                    self.checked,
                )
            )

    def times(self, verdict: Verdict) -> tuple[KernelTimes, ...]:
        """Return the times of each rival from a verdict.

        Raises:
            MeasurementError: if nothing was timed.
        """
        if not verdict.is_ok or not verdict.samples:
            raise MeasurementError(f"{verdict.message or 'nothing was timed'}")
        samples = verdict.samples

        def times(own_pairs: Sequence[tuple[int, int]]) -> KernelTimes:
            if any(not samples[k] for _, k in own_pairs):
                return KernelTimes(0.0, 0.0, ())
            g, k = own_pairs[0]
            ratios = tuple(
                compute_time_ratio(samples[a], samples[b]) for a, b in own_pairs
            )
            return KernelTimes(median(samples[g]), median(samples[k]), ratios)

        return tuple(map(times, self.pairs))


def _write_file(folder: Path, name: str, content: bytes) -> str:
    path = folder / name
    path.write_bytes(content)
    return str(path)


def generate_timed_kernels(
    given_unit: lp.TranslationUnit,
    rivals: Sequence[lp.TranslationUnit],
    opened: HostDevice,
    sizes: Mapping[str, int],
    *,
    exactness: float = 0.0,
    n_unknown: int = 0,
    checked_sizes: Sequence[Mapping[str, int]] = (),
) -> TimedKernels:
    """Generate the code of a kernel and of its rivals.

    Args:
        given_unit: the given kernel.
        rivals: the kernels that may replace it, as delivered.
        opened: the processor to run on.
        sizes: values of all integer scalars.
        exactness: a tolerance, if the one that results' dtypes imply is too strict.
        n_unknown: extent of the axes whose extent is unknown.
        checked_sizes: further values of all integer scalars, at which results are
            compared.

    Raises:
        FeinsumError: if they cannot be timed, with the reason.
    """
    if any(isinstance(unit, LibraryUnit) for unit in (given_unit, *rivals)):
        raise MeasurementError("a program of the host takes the place of a kernel")
    with quiet(Warning):  # such as deprecations in Loopy's use of islpy
        arguments = describe_arguments(given_unit, sizes, n_unknown=n_unknown)
        checked = tuple(
            describe_arguments(given_unit, other) for other in checked_sizes
        )
        tolerance = max(_choose_tolerance(arguments), exactness)
        compiling = ThreadPoolExecutor(2, "feinsum-compiler")
        try:
            programs = _compile_programs(given_unit, rivals, opened, compiling)
        finally:
            compiling.shutdown(wait=False)  # submitted compilations go on
    return TimedKernels(*programs, arguments, tolerance, checked)


def _compile_programs(
    given_unit: lp.TranslationUnit,
    rivals: Sequence[lp.TranslationUnit],
    opened: HostDevice,
    compiling: ThreadPoolExecutor,
) -> _Programs:
    """Compile the programs to compare in the way that suits the kernel's target."""
    target = given_unit.target
    if HOST.serves(target) and not isinstance(target, ExecutableCTarget | HostCTarget):
        return _compile_plain(given_unit, rivals, compiling)
    has_loopy = isinstance(target, ExecutableCTarget)
    return _compile_threaded(given_unit, rivals, opened, compiling, has_loopy=has_loopy)


def _compile_threaded(
    given_unit: lp.TranslationUnit,
    rivals: Sequence[lp.TranslationUnit],
    opened: HostDevice,
    compiling: ThreadPoolExecutor,
    *,
    has_loopy: bool,
) -> _Programs:
    """Compile kernels for the threads of the host."""

    def compile_source(code: HostCode, flags: tuple[str, ...] = ()) -> _Source:
        return _Source(
            compiling.submit(code.compiled_once, flags),
            tuple((n, "" if d is None else d.str) for n, d in code.arguments),
        )

    # Rivals first: their compilation takes longest, and overlaps what follows.
    rival_sources = [compile_source(generate_for_host(unit, opened)) for unit in rivals]
    given_code = generate_for_host(given_unit, opened)
    ways: list[tuple[str, ...]] = [EXECUTABLE_FLAGS, ()] if has_loopy else [()]
    sources = (*(compile_source(given_code, way) for way in ways), *rival_sources)
    n = len(ways)
    pairs = tuple(tuple((g, n + k) for g in range(n)) for k, _ in enumerate(rivals))
    return sources, pairs


def _compile_plain(
    given_unit: lp.TranslationUnit,
    rivals: Sequence[lp.TranslationUnit],
    compiling: ThreadPoolExecutor,
) -> _Programs:
    """Compile plain functions, as their users would."""
    compiler = find_compiler()
    given_code, *rival_codes = map(generate_code, (given_unit, *rivals))
    codes = [_TABLES.sub("  static ", given_code), *rival_codes]
    sources = []
    # the user's options are unknown, so a rival has to gain with both sets
    for flags in (FLAGS, (*compiler.flags, "-fvisibility=default")):
        for unit, code in zip((given_unit, *rivals), codes, strict=True):
            kernel = unit.default_entrypoint
            names = get_kernel_arg_info(kernel).passed_arg_names
            sources.append(
                _Source(
                    compiling.submit(compile_once, compiler, code, flags),
                    tuple((name, "") for name in names),
                    kernel.name,
                )
            )
    n = len(codes)
    pairs = tuple(((0, k), (n, n + k)) for k in range(1, n))
    return tuple(sources), pairs


def describe_arguments(
    unit: lp.TranslationUnit, sizes: Mapping[str, int], *, n_unknown: int = 0
) -> dict[str, RandomArgument]:
    """Describe random arguments of a call, to be drawn when the kernel is timed.

    Raises:
        MeasurementError: if arrays cannot be random, or are too large.
    """
    typed_unit = infer_types(unit)
    kernel = get_entry_kernel(typed_unit)
    if n_unknown:
        args = [_with_known_shape(arg, n_unknown) for arg in kernel.args]
        typed_unit = typed_unit.with_kernel(kernel.copy(args=args))
        kernel = get_entry_kernel(typed_unit)
    _check_loops(kernel)
    below = find_index_bounds(typed_unit, sizes)
    read = kernel.get_read_variables()
    written = kernel.get_written_variables()
    arguments = {}
    for arg in kernel.args:
        dtype = arg.dtype.numpy_dtype
        if isinstance(arg, lp.ValueArg):
            value = sizes.get(arg.name, 1 if dtype.kind in "iub" else 0.75)
            arguments[arg.name] = RandomArgument(dtype.str, value=value)
            continue
        # entries of an array that subscripts others must be within their bounds
        is_index = dtype.kind in "iu" and arg.name in below
        arguments[arg.name] = RandomArgument(
            dtype.str,
            compute_layout(arg, sizes).n_entries,
            below=max(1, below[arg.name]) if is_index else 0,
            is_read=arg.name in read or arg.name not in written,
            is_written=arg.name in written,
        )
    # other processes need memory, too
    n_bytes = sum(a.n_entries * np.dtype(a.dtype).itemsize for a in arguments.values())
    if n_bytes > MAX_BYTES:
        raise MeasurementError(
            f"the arrays of kernel {kernel.name!r} take {n_bytes} bytes; kernels of "
            f"more than {MAX_BYTES} are not timed"
        )
    return arguments


def choose_ragged_sizes(
    kernel: lp.LoopKernel, sizes: Mapping[str, int], names: Collection[str]
) -> tuple[Mapping[str, int], ...]:
    """Choose sizes that no tile divides, as far as the kernel's assumptions allow.

    Args:
        kernel: the kernel to call.
        sizes: values of all integer scalars.
        names: the scalars that may have any value.
    """
    if not names:
        return ()
    # a tile that divides all sizes hides mistakes in the rest loops
    ragged = dict(zip(sorted(names), cycle(RAGGED), strict=False))
    tried = {**sizes, **dict.fromkeys(names, 1)}, {**sizes, **ragged}
    return tuple(candidate for candidate in tried if _are_allowed(kernel, candidate))


def _are_allowed(kernel: lp.LoopKernel, sizes: Mapping[str, int]) -> bool:
    allowed = kernel.assumptions.to_set()
    for name, axis in allowed.get_var_dict(isl.dim_type.param).items():
        if name in sizes:
            allowed = allowed.fix_val(*axis, isl.Val(sizes[name]))
    return not allowed.is_empty()


def _with_known_shape(arg: Any, n_unknown: int) -> Any:
    """Give each axis of unknown extent an extent."""
    if not isinstance(arg, lp.ArrayArg) or not arg.shape:
        return arg
    return arg.copy(shape=tuple(n_unknown if n is None else n for n in arg.shape))


def _check_loops(kernel: Any) -> None:
    """Check that loop bounds do not come from arrays, whose entries will be random.

    Raises:
        MeasurementError: if the bounds of a loop are computed.
    """
    scalars = {arg.name for arg in kernel.args if isinstance(arg, lp.ValueArg)}
    if computed := sorted(
        name
        for domain in kernel.domains
        for name in domain.get_var_names(isl.dim_type.param)
        if name not in scalars and name not in kernel.all_inames()
    ):
        raise MeasurementError(f"the loops of {kernel.name!r} depend on {computed}")


def _choose_tolerance(arguments: Mapping[str, RandomArgument]) -> float:
    dtypes = [np.dtype(a.dtype) for a in arguments.values() if a.is_written]
    if not dtypes:
        raise MeasurementError("the kernel has no results")
    eps = (get_eps(d) for d in dtypes if is_inexact(d))
    return float(max(eps, default=0.0) ** EXACTNESS)


def choose_loop_sizes(kernel: lp.LoopKernel) -> dict[str, int]:
    """Choose the scalars of a loop over cells, so that it runs over a few of them.

    Raises:
        MeasurementError: if a scalar is not an integer.
    """
    scalars = [arg for arg in kernel.args if isinstance(arg, lp.ValueArg)]
    if any(arg.dtype.numpy_dtype.kind not in "iu" for arg in scalars):
        raise MeasurementError("a scalar argument is no size")
    sizes = {arg.name: N_CELLS for arg in scalars}
    if len(scalars) == 2:
        sizes[scalars[0].name] = 0  # where cells begin
    return sizes


def choose_sizes(kernel: lp.LoopKernel, raised: RaisedKernel) -> dict[str, int]:
    """Choose the integer scalars of a kernel near the sizes of its einsums.

    A size of several einsums is the least that one of them would have alone, so that
    the largest arrays decide how long a run takes.
    """
    scalars = {
        arg.name
        for arg in kernel.args
        if isinstance(arg, lp.ValueArg)
        and (arg.dtype is None or arg.dtype.numpy_dtype.kind in "iu")
    }
    loops = scalars & kernel.outer_params()
    quick: dict[str, int] = {}
    for nest in raised.raised:
        for name, n in choose_quick_sizes(nest.einsum, nest.generalized).items():
            if name in scalars:
                quick[name] = min(n, quick.get(name, n))
    return dict.fromkeys(sorted(loops), UNKNOWN_SIZE) | quick


def compute_summation_tolerance(
    selection: NestSelection, sizes: Mapping[str, int]
) -> float:
    """Return how far results may differ for two orders of an einsum's sums."""
    einsum = selection.nest.einsum
    dtype = min(einsum.output_dtypes, key=lambda d: d.itemsize)
    all_sizes = {**sizes, **selection.nest.generalized}
    all_sizes = {
        x.name: all_sizes.get(x.name, UNKNOWN_SIZE) for x in einsum.size_params
    }
    try:
        return 2 * compute_tolerance(dtype, make_reference(einsum).n_terms(all_sizes))
    except FeinsumError:
        return 0.0
