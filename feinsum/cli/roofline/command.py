"""``feinsum roofline``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from feinsum.cli.shared.failure import say
from feinsum.cli.shared.notation import DEFAULT_DTYPE
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Device,
    Dtype,
    Operands,
    Rows,
    Sizes,
    SizeValues,
    Targets,
)
from feinsum.cli.shared.output import print_json

if TYPE_CHECKING:
    from feinsum.cli.roofline.view import View
    from feinsum.measure import OpenDevice, Rung
    from feinsum.records import DevicePeaks

EXAMPLES = """\b
Examples:
  feinsum roofline
  feinsum roofline --suite dgfem --measure --png roofline.png
  feinsum roofline "ij,jk->ik" --sizes i=m,j=64,k=64 --size m=100000
  feinsum roofline wave.py:gradient --size n=100000 --json
"""

Suite: TypeAlias = Annotated[
    Literal["tccg", "dgfem", "all"] | None,
    typer.Option(help="The contractions of TCCG, the operators of DG, or both."),
]
MaxGflop: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="G",
        min=1e-6,
        help="Scale larger contractions of TCCG down to G billion operations.",
    ),
]
Measure: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Run kernels of increasing intensity to find where the device saturates; "
        "takes about a minute on an idle device.",
    ),
]
Levels: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--levels",
        help="Add the minimum traffic at every memory level, and the share of its "
        "bandwidth used; see 'feinsum bound'.",
    ),
]
Png: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Plot the roofline to FILE.png, overwriting it; needs matplotlib.",
    ),
]


def roofline(
    targets: Targets = None,
    suite: Suite = None,
    max_gflop: MaxGflop = None,
    sizes: Sizes = None,
    operands: Operands = None,
    rows: Rows = None,
    dtype: Dtype = DEFAULT_DTYPE,
    size: SizeValues = None,
    measure: Measure = False,
    levels: Levels = False,
    png: Png = None,
    device: Device = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Compare workloads with the measured limits of a device.

    For each workload: operations, bytes, operations per byte, the rate that the
    roofline allows and, if the device has a fact, the rate reached, at the sizes of
    the fact. Missing limits are measured first, which takes a few seconds.
    """
    from feinsum.cli.roofline.view import View
    from feinsum.cli.roofline.work import bound_under, of_suite, of_targets, placed
    from feinsum.db import opened_store
    from feinsum.measure import open_device
    from feinsum.tuning import peaks_of

    _check_picture(png)
    suites = _suites(suite, bool(targets))
    workloads = [w for name in suites for w in of_suite(name, dtype, max_gflop)]
    workloads += of_targets(targets or [], sizes, operands, rows, dtype, size)
    opened = open_device(device)
    is_own = database is None  # measured limits may be the first that it keeps
    with opened_store(database, has_shipped=True, may_create=is_own) as store:
        peaks = peaks_of(opened, store, measure=_measured_peaks, say=say)
        found = placed(workloads, store, opened.device)
    ladder = _ladder(opened, dtype) if measure else ()
    bounds = tuple(bound_under(one, peaks) for one in found) if levels else ()
    view = View(peaks, found, ladder, bounds)
    if png is not None:
        _draw(view, png)
    if as_json:
        print_json(view.document() | {"png": None if png is None else str(png)})
    else:
        view.print()


def _suites(suite: str | None, has_targets: bool) -> tuple[str, ...]:
    """The suites that were asked for; all if nothing at all was."""
    from feinsum.suites import NAMES

    if suite == "all" or (suite is None and not has_targets):
        return NAMES
    return () if suite is None else (suite,)


def _measured_peaks(opened: OpenDevice) -> DevicePeaks:
    from feinsum.measure import measure_peaks

    say(f"measuring {opened.device} ...")
    return measure_peaks(opened)


def _ladder(opened: OpenDevice, dtype: str) -> tuple[Rung, ...]:
    import numpy as np

    from feinsum.measure import measure_ladder
    from feinsum.measure.disturbance import Watch

    say(f"measuring kernels of increasing intensity on {opened.device} ...")
    watch = Watch()
    rungs = measure_ladder(opened, np.dtype(dtype).str)
    if opened.device.kind == "cpu" and (disturbance := watch.disturbance()):
        say(f"{disturbance} meanwhile: these rates are too low")
    return rungs


def _check_picture(png: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is measured."""
    if png is None:
        return
    if png.suffix.lower() != ".png":
        raise _refuse(f"{str(png)!r} must end in .png")
    if not png.parent.is_dir():
        raise _refuse(f"{str(png)!r}: there is no folder {str(png.parent)!r}")


def _draw(view: View, png: Path) -> None:
    from feinsum.drawing import draw_roofline

    try:
        draw_roofline(view.chart(), png)
    except OSError as error:
        raise _refuse(f"{str(png)!r} cannot be written: {error.strerror}") from None


def _refuse(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--png")
