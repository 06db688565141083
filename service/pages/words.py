"""Numbers, times, names and einsums as a page shows them.

``i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x`` becomes ``ij, j → i``, with the formula
``out[i] = Σ j  A[i,j] · x[j]`` and its arrays ``A[N × 4], x[4] · float64``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from threading import Lock

from cachetools import LRUCache, cached

from feinsum.drawing.tuning import format_time
from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum, IndexList, from_text, write_subscripts
from feinsum.records import Device
from feinsum.words import format_count

THIN = "\u202f"
"""A narrow no-break space."""

MAX_SPEEDUP = 1e5
"""The largest speed-up that is drawn; beyond all lanes and caches of a device."""

DOUBT = "(another machine?)"

RATES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
"""Vendors of processors, by the id that processors report."""

DTYPES = {"<f4": "float32", "<f8": "float64", "<c8": "complex64", "<c16": "complex128"}


def format_number(number: int) -> str:
    """Format a number in groups of three digits.

    >>> format_number(1234567).replace(THIN, " ")
    '1 234 567'
    """
    # the narrow space is the separator of ISO 80000, and breaks no line
    return f"{number:,}".replace(",", THIN)


def format_ratio(factor: float) -> str:
    """Format a factor with two or three digits.

    >>> (format_ratio(56.48), format_ratio(1.234), format_ratio(0.9),
    ...  format_ratio(1234.0))
    ('56.5×', '1.23×', '0.90×', '1234×')
    >>> format_ratio(8e18)
    '8.0e+18× (not plausible)'
    """
    if is_implausible(factor):
        return f"{factor:.1e}× (not plausible)"
    return f"{factor:.{0 if factor >= 100 else 1 if factor >= 10 else 2}f}×"


def is_implausible(factor: float) -> bool:
    """Return whether no kernel can be so much faster than another of the same work."""
    return not 1 / MAX_SPEEDUP <= factor <= MAX_SPEEDUP


def format_seconds(time_s: float) -> str:
    """Format seconds with three digits and a unit."""
    return format_time(time_s).replace(" ", THIN)


def format_rate(per_s: float, unit: str) -> str:
    """Format a rate with three digits, a prefix and a unit per second.

    >>> (format_rate(4.2e10, "op").replace(THIN, " "),
    ...  format_rate(12.0, "B").replace(THIN, " "))
    ('42 Gop/s', '12 B/s')
    """
    scale, prefix = next((r for r in RATES if per_s >= r[0]), RATES[-1])
    return f"{per_s / scale:.3g}{THIN}{prefix}{unit}/s"


def format_day(when: str | datetime) -> str:
    """Format the day and the minute, in UTC as recorded.

    >>> format_day("2026-01-31T12:00:01+00:00")
    '2026-01-31 12:00'
    """
    text = when if isinstance(when, str) else when.isoformat()
    return text[:16].replace("T", " ")


def format_share(fraction: float, device: Device) -> str:
    """Format a fraction of the roofline in percent.

    Facts and limits of a device that is not identified may be of two machines; a share
    that shows it is marked.

    >>> gpu = Device("CUDA", "A GPU", "NVIDIA", "gpu", "NVIDIA", 132)
    >>> (format_share(0.501, gpu).replace(THIN, " "),
    ...  format_share(1.2, gpu).replace(THIN, " "))
    ('50 %', '120 %')
    >>> epyc = Device("PoCL", "AMD EPYC", "AuthenticAMD", "cpu", "x86_64", 2)
    >>> (format_share(0.501, epyc).replace(THIN, " "),
    ...  format_share(1.2, epyc).replace(THIN, " "))
    ('50 %', '120 % (another machine?)')
    """
    percent = f"{fraction * 100:.0f} %"
    return f"{percent} {DOUBT}" if is_doubtful(fraction, device) else percent


def format_device(device: Device) -> str:
    """Describe a device, distinguishing it from others with the same name.

    >>> format_device(Device("CUDA", "A GPU", "NVIDIA", "gpu", "NVIDIA", 132))
    'A GPU, 132 compute units (CUDA)'
    >>> format_device(Device("PoCL", "AMD EPYC", "AuthenticAMD", "cpu", "x86_64", 2))
    'AMD EPYC, unknown microarchitecture, 2 compute units (PoCL)'
    """
    return (
        f"{clip_text(format_hardware(device), 200)} ({clip_text(device.platform, 60)})"
    )


def format_hardware(device: Device) -> str:
    """Describe the hardware of a device: its vendor unless in the name, and its cores.

    >>> format_hardware(Device("PoCL", "Neoverse N1", "ARM", "cpu", "aarch64", 1))
    'Neoverse N1, unknown microarchitecture, 1 compute unit'
    """
    words = [clip_text(device.name, 100)]
    processor = device.processor
    vendor = VENDORS.get(processor.vendor, processor.vendor) if processor else ""
    # "AMD EPYC" needs no second AMD
    if vendor.lower() not in device.name.lower():
        words.append(clip_text(vendor, 60))
    if device.kind == "cpu":
        name = device.microarchitecture or "unknown microarchitecture"
        words.append(clip_text(name, 60))
    if processor and processor.n_cores > 0:
        words.append(format_plural(processor.n_cores, "core"))
    else:
        words.append(format_plural(device.compute_units, "compute unit"))
    return ", ".join(words)


def is_doubtful(fraction: float | None, device: Device) -> bool:
    """Return whether :func:`format_share` marks a fraction as doubtful."""
    return fraction is not None and fraction > 1 and not device.is_identified


def clip_text(text: str, limit: int = 300) -> str:
    """Shorten a text to a limit.

    >>> clip_text("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def format_plural(number: int, noun: str) -> str:
    """Format a number with its noun.

    >>> format_plural(1, "fact"), format_plural(2, "fact"), format_plural(0, "vertex")
    ('1 fact', '2 facts', '0 vertices')
    """
    return format_count(number, noun, ",").replace(",", THIN)


def get_dtype_name(name: str) -> str:
    """Return the full name of a dtype that a record abbreviates.

    >>> get_dtype_name("<f8"), get_dtype_name("anything")
    ('float64', 'anything')
    """
    return DTYPES.get(name, name)


FILTERS = {
    "clipped": clip_text,
    "count": format_number,
    "day": format_day,
    "dtype": get_dtype_name,
    "hardware": format_hardware,
    "label": format_device,
    "plural": format_plural,
    "rate": format_rate,
    "ratio": format_ratio,
    "seconds": format_seconds,
    "share": format_share,
}
"""Their names in templates."""

MAX_TEXT = 20_000
"""Maximum characters of a text to parse; a longer one is shown as it is."""

MAX_ROWS = 4
"""Rows of a batch that are written out."""

CACHE_BYTES = 16 * 2**20


def estimate_bytes(value: object) -> int:
    """Estimate from above how much memory an entry of a cache takes.

    A character has up to four bytes, and an object with short fields 50 bytes and more.
    A number of entries alone bounds no memory, since callers choose the lengths of
    texts.
    """
    return 700 + 8 * len(repr(value))


@dataclass(frozen=True)
class Array:
    """An operand: its name, its shape and its dtype, in words."""

    name: str
    shape: str
    dtype: str


@dataclass(frozen=True)
class Notation:
    """An einsum in words.

    Attributes:
        text: the text of the workload; a cache counts it as the size of the key.
        title: the subscripts; the text itself if it is not an einsum.
        shapes: all operands in one line, and of which dtype they are.
        dtypes: of the operands, each once.
        formulas: what the rows compute, the first ones.
        n_rows: of the batch.
    """

    text: str
    title: str
    shapes: str = ""
    dtypes: str = ""
    formulas: tuple[str, ...] = ()
    arrays: tuple[Array, ...] = ()
    n_rows: int = 0


@cached(LRUCache(CACHE_BYTES, estimate_bytes), lock=Lock())
def make_notation(text: str) -> Notation:
    """Describe a workload, given by its text.

    >>> words = make_notation("i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x")
    >>> words.title, words.shapes
    ('ij, j → i', 'A[N × 4], x[4] · float64')
    >>> words.formulas
    ('out[i] = Σ j  A[i,j] · x[j]',)
    >>> make_notation("no einsum").title
    'no einsum'
    """
    # parsing takes time in proportion to the length, which others choose
    if len(text) > MAX_TEXT:
        return Notation(text, text)
    try:
        einsum = from_text(text)
    except FeinsumError:
        return Notation(text, text)
    arrays = tuple(
        Array(operand.name, " × ".join(map(str, operand.shape)), operand.dtype.name)
        for operand in einsum.operands
    )
    shapes = ", ".join(f"{array.name}[{array.shape}]" for array in arrays)
    dtypes = ", ".join(dict.fromkeys(array.dtype for array in arrays))
    rows = range(min(einsum.batch_size, MAX_ROWS))
    return Notation(
        text=text,
        title=_format_title(einsum),
        shapes=f"{shapes} · {dtypes}",
        dtypes=dtypes,
        formulas=tuple(_format_formula(einsum, row) for row in rows),
        arrays=arrays,
        n_rows=einsum.batch_size,
    )


def _format_title(einsum: BatchedEinsum) -> str:
    terms = [write_subscripts([term]) for term in (*einsum.inputs, einsum.output)]
    rows = f"  ({einsum.batch_size} rows)" if einsum.batch_size > 1 else ""
    return f"{', '.join(terms[:-1])} → {terms[-1] or '·'}{rows}"


def _format_formula(einsum: BatchedEinsum, row: int) -> str:
    def access(name: str, indices: IndexList) -> str:
        return f"{name}[{','.join(indices)}]" if indices else name

    # a single row needs no number
    out = f"out{row}" if einsum.batch_size > 1 else "out"
    factors = [
        access(operand.name, term)
        for operand, term in zip(einsum.rows[row], einsum.inputs, strict=True)
    ]
    sums = " ".join(einsum.summation_indices)
    total = f"Σ {sums}  " if sums else ""
    return f"{access(out, einsum.output)} = {total}{' · '.join(factors)}"
