"""Random einsums, isomorphisms, near misses, arrays and tuning records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from constantdict import constantdict
from hypothesis import settings
from hypothesis import strategies as st

from feinsum.canonical import Relabeling, WorkloadKey
from feinsum.ir import BatchedEinsum, Extent, Operand, SizeParam
from feinsum.records import (
    Device,
    Environment,
    Measurement,
    Processor,
    TransformSpec,
    TuningRecord,
    Verification,
)

DTYPES = ("<f8", ">f8", "<f4", "<c16", "<i8", "|b1")
EXTENTS: tuple[Extent, ...] = (1, 2, 3, SizeParam("N"), SizeParam("M"))
SIZES: Mapping[str, int] = {"N": 2, "M": 3}
"""The value of each size parameter where an einsum is evaluated."""


def counts(default: int, long: int) -> settings:
    """The number of examples of one test: in every run, and with ``-m long``."""
    is_long = settings.get_current_profile_name() == "long"
    return settings(max_examples=long if is_long else default)


@dataclass(frozen=True)
class Sketch:
    """What to build an einsum from; every sketch builds a well-formed one.

    An array is known by its label and its shape, so that whatever changes in a
    sketch, operands of one name stay one array.

    Attributes:
        extents: of index 0, 1, ...
        inputs, output: numbers of indices; numbers in no term are not put out.
        labels: for each row and position which array of that shape.
        dtypes: of label 0, 1, ...
    """

    extents: tuple[Extent, ...]
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    labels: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    def build(self) -> BatchedEinsum:
        bound = {index for term in self.inputs for index in term}
        return BatchedEinsum(
            _names(index for index in self.output if index in bound),
            tuple(_names(term) for term in self.inputs),
            tuple(
                tuple(map(self._operand, self.inputs, labels)) for labels in self.labels
            ),
        )

    def _operand(self, term: tuple[int, ...], label: int) -> Operand:
        shape = tuple(self.extents[index] for index in term)
        name = "_".join(["ABC"[label], *map(str, shape)])
        return Operand(name, shape, np.dtype(self.dtypes[label]))


def _names(indices: Any) -> tuple[str, ...]:
    return tuple("ijklmn"[index] for index in indices)


@st.composite
def sketches(
    draw: st.DrawFn, *, n_indices: int = 6, n_terms: int = 4, n_rows: int = 4
) -> Sketch:
    """Up to so many indices, terms (of rank 0 to 4) and rows.

    Few extents, dtypes and different terms, so that there is much to confuse.
    """
    extents = draw(_few(EXTENTS, 1, n_indices))
    index = st.integers(0, len(extents) - 1)
    terms = draw(_tuples(_tuples(index, 0, 4), 1, n_terms))
    inputs = draw(_tuples(st.sampled_from(terms), 1, n_terms))
    row = _tuples(st.integers(0, 2), len(inputs), len(inputs))
    return Sketch(
        extents,
        inputs,
        output=draw(st.lists(index, unique=True, max_size=3).map(tuple)),
        labels=draw(_tuples(row, 1, n_rows)),
        dtypes=draw(_few(DTYPES, 3, 3)),
    )


def einsums(**limits: int) -> st.SearchStrategy[BatchedEinsum]:
    """Well-formed batched einsums; rows share operands."""
    return sketches(**limits).map(Sketch.build)


@st.composite
def near_misses(draw: st.DrawFn, sketch: Sketch) -> Sketch:
    """The sketch with one thing changed; it may be isomorphic all the same."""
    kind = draw(st.sampled_from(["extent", "axis", "output", "label", "dtype"]))
    match kind:
        case "extent":
            extents = _with_one_drawn(draw, sketch.extents, st.sampled_from(EXTENTS))
            return replace(sketch, extents=extents)
        case "axis":
            index = st.integers(0, len(sketch.extents) - 1)
            p = draw(st.integers(0, len(sketch.inputs) - 1))
            term = _with_one_drawn(draw, sketch.inputs[p], index)
            return replace(sketch, inputs=_with(sketch.inputs, p, term))
        case "output":
            output = tuple(draw(st.permutations(sketch.output)))
            return replace(sketch, output=output)
        case "label":
            k = draw(st.integers(0, len(sketch.labels) - 1))
            labels = _with_one_drawn(draw, sketch.labels[k], st.integers(0, 2))
            return replace(sketch, labels=_with(sketch.labels, k, labels))
        case _:
            dtypes = _with_one_drawn(draw, sketch.dtypes, st.sampled_from(DTYPES))
            return replace(sketch, dtypes=dtypes)


@st.composite
def near_pairs(draw: st.DrawFn, **limits: int) -> tuple[BatchedEinsum, BatchedEinsum]:
    """Two einsums that differ in at most one thing and in all their names."""
    sketch = draw(sketches(**limits))
    other = draw(near_misses(sketch)).build()
    return sketch.build(), draw(relabelings(other)).apply(other)


@st.composite
def relabelings(draw: st.DrawFn, einsum: BatchedEinsum) -> Relabeling:
    """An isomorphism from ``einsum``: any names, any order of rows and operands."""
    rows = tuple(draw(st.permutations(range(einsum.batch_size))))
    first = tuple(draw(st.permutations(range(einsum.n_operands))))
    others = [draw(_among_equal_terms(einsum, first)) for _ in rows[1:]]
    return Relabeling(
        draw(_renamings(einsum.indices)),
        draw(_renamings([operand.name for operand in einsum.operands])),
        draw(_renamings([param.name for param in einsum.size_params])),
        rows,
        (first, *others),
    )


@st.composite
def _among_equal_terms(
    draw: st.DrawFn, einsum: BatchedEinsum, positions: tuple[int, ...]
) -> tuple[int, ...]:
    """``positions``, in another order where their terms are equal."""
    left = draw(st.permutations(positions))
    order = []
    for p in positions:
        q = next(q for q in left if einsum.inputs[q] == einsum.inputs[p])
        left = [other for other in left if other != q]
        order.append(q)
    return tuple(order)


def _renamings(names: Any) -> st.SearchStrategy[constantdict[str, str]]:
    """Bijections to a few names; an operand may get the name of an index."""
    pool = [*"abijxyABN", "e1", "dof", "Nel", "_0", "ä", *"klmnopqrstuvwz"]
    news = st.lists(
        st.sampled_from(pool), min_size=len(names), max_size=len(names), unique=True
    )
    return news.map(lambda new: constantdict(zip(names, new, strict=True)))


def arrays_of(
    einsum: BatchedEinsum, sizes: Mapping[str, int] = SIZES
) -> dict[str, np.ndarray]:
    """Small whole numbers for every operand: sums of them are exact."""
    rng = np.random.default_rng(0)

    def values(operand: Operand) -> np.ndarray:
        shape = [x if isinstance(x, int) else sizes[x.name] for x in operand.shape]
        return rng.integers(-2, 3, shape).astype(operand.dtype)

    return {operand.name: values(operand) for operand in einsum.operands}


SECONDS = st.floats(1e-6, 1.0)
LABELS = st.text(max_size=8)
PARAMETER_VALUES = (
    st.booleans()
    | st.integers()
    | st.text(max_size=12)
    | st.lists(st.integers() | st.text(max_size=3), max_size=3).map(tuple)
)

specs = st.builds(
    TransformSpec,
    name=st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True),
    version=st.integers(0, 99),
    parameters=st.dictionaries(
        st.from_regex(r"[a-z]_[a-z0-9]{0,4}", fullmatch=True),
        PARAMETER_VALUES,
        max_size=3,
    ),
)

processors = st.builds(
    Processor,
    vendor=LABELS,
    family=st.integers(-1, 1000),
    model=st.integers(-1, 1000),
    stepping=st.integers(-1, 1000),
    microarchitecture=LABELS,
    features=st.lists(LABELS, max_size=3).map(sorted).map(tuple),
    n_cores=st.integers(-1, 1000),
    cache_bytes=st.dictionaries(LABELS, st.integers(0, 2**40), max_size=2),
)

devices = st.builds(
    Device,
    platform=LABELS,
    name=LABELS,
    vendor=LABELS,
    kind=st.sampled_from(["cpu", "gpu", "accelerator", "other"]),
    architecture=LABELS,
    compute_units=st.integers(1, 1000),
    processor=st.none() | processors,
)

environments = st.builds(
    Environment,
    device=devices,
    driver_version=LABELS,
    platform_version=LABELS,
    software=st.dictionaries(LABELS, LABELS, max_size=2),
    policy=st.dictionaries(LABELS, LABELS | st.integers() | SECONDS, max_size=2),
)

_sizes = st.dictionaries(LABELS, st.integers(0, 10**6), max_size=2)

measurements = st.builds(
    Measurement,
    samples_s=st.lists(SECONDS, min_size=1, max_size=5).map(tuple),
    baseline_s=st.lists(SECONDS, min_size=1, max_size=5).map(tuple),
    timer=st.sampled_from(["opencl-profiling", "wall"]),
    n_warmup=st.integers(0, 9),
    sizes=_sizes,
    operations=st.dictionaries(st.sampled_from(DTYPES), st.integers(0, 10**12)),
    footprint_bytes=st.integers(0, 10**12),
    verification=st.builds(
        Verification,
        reference=LABELS,
        tolerance=SECONDS,
        largest_error=SECONDS,
        sizes=st.lists(_sizes, max_size=2).map(tuple),
    ),
)

tuning_records = st.builds(
    TuningRecord,
    workload=LABELS,
    workload_text=LABELS,
    environment=environments,
    spec=specs,
    measurement=measurements,
    provenance=st.dictionaries(LABELS, LABELS, max_size=2),
    recorded_at=LABELS,
)

PROCESSOR = Processor(
    "Maker", 25, 17, 1, "zen4", ("avx2", "avx512f"), 8, {"L1d": 2**15, "L2": 2**20}
)
CPU = Device("Portable OpenCL", "Some CPU", "Maker", "cpu", "x86_64", 8, PROCESSOR)
HERE = Environment(CPU, "driver 1", "platform 1", {"loopy": "2025.2"}, {"rounds": 5})


def make_record(
    samples_s: tuple[float, ...] = (0.5,),
    baseline_s: tuple[float, ...] = (1.0,),
    *,
    spec: str = "rowwise@1(lanes=8)",
    environment: Environment = HERE,
) -> TuningRecord:
    """A fact of one recipe and its times; all else is fixed."""
    measurement = Measurement(
        samples_s,
        baseline_s,
        timer="wall",
        n_warmup=1,
        sizes={"N": 100},
        operations={"<f8": 1000, "<f4": 1000},
        footprint_bytes=2400,
        verification=Verification("numpy", 1e-12, 1e-16, ({"N": 3},)),
    )
    return TuningRecord(
        WorkloadKey("a-key"),
        "a text",
        environment,
        TransformSpec.parse(spec),
        measurement,
        {"host": "here"},
        "2025-01-01T00:00:00+00:00",
    )


def _tuples(
    items: st.SearchStrategy[Any], min_size: int, max_size: int
) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=min_size, max_size=max_size).map(tuple)


def _with(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


def _with_one_drawn(
    draw: st.DrawFn, items: tuple[Any, ...], choices: st.SearchStrategy[Any]
) -> tuple[Any, ...]:
    """``items`` with one of them drawn anew; nothing to change in no items."""
    if not items:
        return items
    return _with(items, draw(st.integers(0, len(items) - 1)), draw(choices))


def _few(
    choices: tuple[Any, ...], min_size: int, max_size: int
) -> st.SearchStrategy[tuple[Any, ...]]:
    """Tuples of one or two of the choices."""
    palettes = _tuples(st.sampled_from(choices), 1, 2)
    return palettes.flatmap(lambda p: _tuples(st.sampled_from(p), min_size, max_size))
