"""Numbers, times and names as a page shows them."""

from __future__ import annotations

from datetime import datetime

from feinsum.drawing.tuning import time_text
from feinsum.records import Device
from feinsum.words import counted

THIN = "\u202f"
"""A narrow no-break space."""

MAX_SPEEDUP = 1e5
"""The largest speed-up that is drawn; beyond all lanes and caches of a device."""

DOUBT = "(another machine?)"

RATES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
"""Vendors of processors, by the id that processors report."""

DTYPES = {"<f4": "float32", "<f8": "float64", "<c8": "complex64", "<c16": "complex128"}


def count(number: int) -> str:
    """Format a number in groups of three digits.

    >>> count(1234567).replace(THIN, " ")
    '1 234 567'
    """
    # the narrow space is the separator of ISO 80000, and breaks no line
    return f"{number:,}".replace(",", THIN)


def ratio(factor: float) -> str:
    """Format a factor with two or three digits.

    >>> ratio(56.48), ratio(1.234), ratio(0.9), ratio(1234.0)
    ('56.5×', '1.23×', '0.90×', '1234×')
    >>> ratio(8e18)
    '8.0e+18× (not plausible)'
    """
    if is_implausible(factor):
        return f"{factor:.1e}× (not plausible)"
    return f"{factor:.{0 if factor >= 100 else 1 if factor >= 10 else 2}f}×"


def is_implausible(factor: float) -> bool:
    """Return whether no kernel can be so much faster than another of the same work."""
    return not 1 / MAX_SPEEDUP <= factor <= MAX_SPEEDUP


def seconds(time_s: float) -> str:
    """Format seconds with three digits and a unit."""
    return time_text(time_s).replace(" ", THIN)


def rate(per_s: float, unit: str) -> str:
    """Format a rate with three digits, a prefix and a unit per second.

    >>> rate(4.2e10, "op").replace(THIN, " "), rate(12.0, "B").replace(THIN, " ")
    ('42 Gop/s', '12 B/s')
    """
    scale, prefix = next((r for r in RATES if per_s >= r[0]), RATES[-1])
    return f"{per_s / scale:.3g}{THIN}{prefix}{unit}/s"


def day(when: str | datetime) -> str:
    """Format the day and the minute, in UTC as recorded.

    >>> day("2026-01-31T12:00:01+00:00")
    '2026-01-31 12:00'
    """
    text = when if isinstance(when, str) else when.isoformat()
    return text[:16].replace("T", " ")


def share(fraction: float, device: Device) -> str:
    """Format a fraction of the roofline in percent.

    Facts and limits of a device that is not identified may be of two machines; a share
    that shows it is marked.

    >>> gpu = Device("CUDA", "A GPU", "NVIDIA", "gpu", "NVIDIA", 132)
    >>> share(0.501, gpu).replace(THIN, " "), share(1.2, gpu).replace(THIN, " ")
    ('50 %', '120 %')
    >>> epyc = Device("PoCL", "AMD EPYC", "AuthenticAMD", "cpu", "x86_64", 2)
    >>> share(0.501, epyc).replace(THIN, " "), share(1.2, epyc).replace(THIN, " ")
    ('50 %', '120 % (another machine?)')
    """
    percent = f"{fraction * 100:.0f} %"
    return f"{percent} {DOUBT}" if is_doubtful(fraction, device) else percent


def label(device: Device) -> str:
    """Describe a device, distinguishing it from others with the same name.

    >>> label(Device("CUDA", "A GPU", "NVIDIA", "gpu", "NVIDIA", 132))
    'A GPU, 132 compute units (CUDA)'
    >>> label(Device("PoCL", "AMD EPYC", "AuthenticAMD", "cpu", "x86_64", 2))
    'AMD EPYC, unknown microarchitecture, 2 compute units (PoCL)'
    """
    return f"{clipped(hardware(device), 200)} ({clipped(device.platform, 60)})"


def hardware(device: Device) -> str:
    """Describe the hardware of a device: its vendor unless in the name, and its cores.

    >>> hardware(Device("PoCL", "Neoverse N1", "ARM", "cpu", "aarch64", 1))
    'Neoverse N1, unknown microarchitecture, 1 compute unit'
    """
    words = [clipped(device.name, 100)]
    processor = device.processor
    vendor = VENDORS.get(processor.vendor, processor.vendor) if processor else ""
    # "AMD EPYC" needs no second AMD
    if vendor.lower() not in device.name.lower():
        words.append(clipped(vendor, 60))
    if device.kind == "cpu":
        name = device.microarchitecture or "unknown microarchitecture"
        words.append(clipped(name, 60))
    if processor and processor.n_cores > 0:
        words.append(plural(processor.n_cores, "core"))
    else:
        words.append(plural(device.compute_units, "compute unit"))
    return ", ".join(words)


def is_doubtful(fraction: float | None, device: Device) -> bool:
    """Return whether :func:`share` marks a fraction as doubtful."""
    return fraction is not None and fraction > 1 and not device.is_identified


def clipped(text: str, limit: int = 300) -> str:
    """Shorten a text to a limit.

    >>> clipped("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def plural(number: int, noun: str) -> str:
    """Format a number with its noun.

    >>> plural(1, "fact"), plural(2, "fact"), plural(0, "vertex")
    ('1 fact', '2 facts', '0 vertices')
    """
    return counted(number, noun, ",").replace(",", THIN)


def dtype(name: str) -> str:
    """Return the full name of a dtype that a record abbreviates.

    >>> dtype("<f8"), dtype("anything")
    ('float64', 'anything')
    """
    return DTYPES.get(name, name)


FILTERS = {
    "clipped": clipped,
    "count": count,
    "day": day,
    "dtype": dtype,
    "hardware": hardware,
    "label": label,
    "plural": plural,
    "rate": rate,
    "ratio": ratio,
    "seconds": seconds,
    "share": share,
}
"""Their names in templates."""
