"""The figure of a tuning: its trace, its best recipes, the effect of each parameter."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure as Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from feinsum.drawing.notebook import NotebookFigure
from feinsum.drawing.tuning import (
    Bar,
    Coordinates,
    Point,
    Strip,
    TuningPicture,
    format_time,
)

Look: TypeAlias = Literal["light", "dark"]

COLUMNS = 3
MOST_STRIPS = 12
MOST_COORDINATES = 3
DOTS_PER_INCH = 130.0
PAPER = {"light": "#ffffff", "dark": "#16181d"}
INK = {"light": "#222222", "dark": "#dddddd"}
GRID = {"light": "#dddddd", "dark": "#3a3d44"}
BEST, PASSED, FAILED, LIMIT = "#0f8b6d", "#4c86c6", "#d1495b", "#c98a1b"


def render_tuning(picture: TuningPicture, format: str, look: Look = "light") -> bytes:
    """Render a figure to the bytes of a file, in a format of matplotlib."""
    with _use_style(look):
        file = io.BytesIO()
        no_date: dict[str, str | None] = {"Date": None} if format == "svg" else {}
        _draw_figure(picture).savefig(
            file, format=format, dpi=DOTS_PER_INCH, metadata=no_date
        )
    return file.getvalue()


def draw_tuning(picture: TuningPicture, look: Look = "light") -> Figure:
    """Build a matplotlib figure, to show or to save."""
    with _use_style(look):
        return _draw_figure(picture)


@contextmanager
def _use_style(look: Look) -> Iterator[None]:
    style: dict[str, object] = {
        "font.family": "DejaVu Sans",
        "font.size": 9.0,
        "svg.hashsalt": "feinsum",
        "text.parse_math": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": GRID[look],
        "figure.facecolor": PAPER[look],
        "axes.facecolor": PAPER[look],
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK[look]),
        **dict.fromkeys(("xtick.color", "ytick.color"), INK[look]),
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(style)
        yield


def _draw_figure(picture: TuningPicture) -> Figure:
    strips = picture.strips[:MOST_STRIPS]
    wide: list[tuple[float, Callable[[Axes], None]]] = [
        (3.0, partial(_draw_trace, picture.points))
    ]
    if picture.bars:
        height = 0.7 + 0.32 * len(picture.bars)
        wide.append((height, partial(_draw_bars, picture.bars)))
    wide += [
        (2.8, partial(_draw_coordinates, chosen))
        for chosen in picture.coordinates[:MOST_COORDINATES]
    ]
    heights = [height for height, _ in wide] + [1.9] * -(-len(strips) // COLUMNS)
    figure = NotebookFigure(figsize=(10.0, sum(heights) + 0.6), layout="constrained")
    figure.suptitle(picture.title, fontsize=10)
    grid = figure.add_gridspec(len(heights), COLUMNS, height_ratios=heights)
    for row, (_, drawn) in enumerate(wide):
        drawn(figure.add_subplot(grid[row, :]))
    for k, strip in enumerate(strips):
        row, column = divmod(k, COLUMNS)
        _draw_strip(figure.add_subplot(grid[len(wide) + row, column]), strip)
    return figure


def _draw_trace(points: Sequence[Point], axes: Axes) -> None:
    """Draw the time of each trial and the best so far; failures at the upper edge."""
    axes.set_title("Search trace", loc="left")
    if not points:
        axes.set_axis_off()
        return
    axes.set_xlabel("trial")
    axes.set_ylabel("median time")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    numbered = list(enumerate(points, start=1))
    passed = [(k, p.seconds, p.is_known) for k, p in numbered if p.seconds is not None]
    failed = [k for k, p in numbered if p.seconds is None]
    for is_known, label in ((False, "passed"), (True, "passed, earlier run")):
        chosen = [(k, s) for k, s, is_recorded in passed if is_recorded is is_known]
        face = "none" if is_known else PASSED
        if chosen:
            x, y = zip(*chosen, strict=True)
            axes.scatter(x, y, 26, facecolor=face, edgecolor=PASSED, label=label,
                         zorder=3)  # fmt: skip
    if passed:
        _time_axis(axes, "y", [s for _, s, _ in passed])
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** 0.1)  # room for failures
        trace = [(k, min(s for j, s, _ in passed if j <= k)) for k, _, _ in passed]
        trace.append((len(points), trace[-1][1]))
        x, y = zip(*trace, strict=True)
        axes.step(x, y, where="post", color=BEST, label="best so far")
    if failed:
        axes.scatter(failed, [0.97] * len(failed), s=34, marker="x", color=FAILED,
                     transform=axes.get_xaxis_transform(), label="failed",
                     clip_on=False)  # fmt: skip
    axes.set_xlim(0.5, len(points) + 0.5)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=4)


def _draw_bars(bars: Sequence[Bar], axes: Axes) -> None:
    axes.set_title("Best recipes, timed in one run", loc="left")
    seconds = [bar.seconds for bar in bars]
    colors = [LIMIT if bar.is_limit else PASSED for bar in bars]
    axes.barh([bar.name for bar in bars], seconds, color=colors, height=0.6)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    _time_axis(axes, "x", seconds)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.2)  # room for the labels
    for row, bar in enumerate(bars):
        axes.annotate(
            f"{format_time(bar.seconds)}{bar.note}",
            (bar.seconds, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )


def _draw_strip(axes: Axes, strip: Strip) -> None:
    """Draw a column of points for each value, and its median as a line."""
    axes.set_title(strip.name, loc="left", fontsize=8.5)
    axes.grid(visible=False, axis="x")
    for column, (_, seconds) in enumerate(strip.values):
        axes.plot([column] * len(seconds), seconds, "o", color=PASSED, ms=4, alpha=0.7)
        middle = sorted(seconds)[len(seconds) // 2]
        axes.plot([column - 0.25, column + 0.25], [middle] * 2, color=BEST, lw=2)
    names = [value for value, _ in strip.values]
    is_crowded = sum(map(len, names)) > 22
    axes.set_xticks(
        range(len(names)),
        [_shorten(name) for name in names],
        rotation=20 if is_crowded else 0,
        ha="right" if is_crowded else "center",
        fontsize=8,
    )
    axes.set_xlim(-0.6, len(names) - 0.4)
    _time_axis(axes, "y", [s for _, seconds in strip.values for s in seconds])


def _draw_coordinates(chosen: Coordinates, axes: Axes) -> None:
    """Draw a line for each trial; slower ones are fainter and further behind."""
    axes.set_title(f"{chosen.name}: one line per trial", loc="left")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_yticks([])
    axes.set_ylim(0, 1)
    axes.set_xlim(-0.2, len(chosen.axes) - 0.8)
    names = [_shorten(name, 110 // len(chosen.axes)) for name, _ in chosen.axes]
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(length=0)
    times = [seconds for _, seconds in chosen.lines]
    colors = [PASSED, mpl.rcParams["grid.color"]]
    fading = LinearSegmentedColormap.from_list("fading", colors)
    norm = LogNorm(min(times), max(times))
    crossed = sorted(zip(times, chosen.heights(), strict=True), reverse=True)
    for seconds, heights in crossed:
        axes.plot(heights, color=fading(norm(seconds)), lw=1.3)
    seconds, heights = crossed[-1]
    axes.plot(heights, color=BEST, lw=2.5, label=f"best, {format_time(seconds)}")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    for column, (_, values) in enumerate(chosen.axes):
        _draw_values(axes, column, values)
    scale = mpl.cm.ScalarMappable(norm, fading)
    bar = axes.figure.colorbar(scale, ax=axes, pad=0.01, fraction=0.03)
    _label_times(bar.ax.yaxis, max(times) / min(times))


def _draw_values(axes: Axes, column: int, values: Sequence[str]) -> None:
    """Draw a vertical axis of parallel coordinates, with the names of its bands."""
    axes.axvline(column, color=axes.spines["left"].get_edgecolor(), lw=0.8)
    paper = {"facecolor": axes.get_facecolor(), "lw": 0, "pad": 1.0, "alpha": 0.8}
    for k, value in enumerate(values):
        axes.text(
            column,
            (k + 0.5) / len(values),
            _shorten(value),
            ha="center",
            va="center",
            fontsize=8,
            bbox=paper,
        )


def _shorten(text: str, limit: int = 18) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _time_axis(axes: Axes, which: Literal["x", "y"], seconds: Sequence[float]) -> None:
    """Make an axis logarithmic, with a limited number of readable labels."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    middle = (min(seconds) * max(seconds)) ** 0.5
    low = min(min(seconds) / 1.25, middle / 1.6)  # room for equal times, too
    high = max(max(seconds) * 1.25, middle * 1.6)
    if which == "x":
        axes.set_xscale("log")
        axes.set_xlim(low / 1.6, high)
    else:
        axes.set_yscale("log")
        axes.set_ylim(low, high)
    _label_times(axis, high / low)


def _label_times(axis: Axis, ratio: float) -> None:
    axis.set_major_locator(LogLocator(subs=_choose_steps(ratio), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_time(value)))
    axis.set_minor_formatter(NullFormatter())


def _choose_steps(ratio: float) -> Sequence[float]:
    """Return the numbers of a decade to label, on an axis that spans a ratio."""
    if ratio < 5:
        return (1, 1.5, 2, 3, 4, 5, 7)
    return (1, 2, 5) if ratio < 300 else (1,)
