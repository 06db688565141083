"""The report of a tuning: a self-contained page, also while it runs, and a picture."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import timedelta
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from feinsum.drawing import can_plot, check_plots
from feinsum.drawing.tuning import (
    Bar,
    Coordinates,
    Point,
    Strip,
    TuningPicture,
    format_time,
)
from feinsum.records import Trial
from feinsum.tuning.progress import Finalist, TuningProgress, TuningReport, TuningStart
from feinsum.words import (
    format_count,
    format_html_table,
    format_sizes,
    make_inline_svg,
)

if TYPE_CHECKING:
    from feinsum.drawing.tuning_figure import Figure

N_BARS = 5

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Tuning of {title}</title>
<style>
:root {{ color-scheme: light dark; --paper: #fff; --ink: #222; --line: #ddd;
  --faint: #666; --bad: #b3263a; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --paper: #16181d; --ink: #ddd; --line: #3a3d44; --faint: #9a9da5;
    --bad: #ff8091; }} }}
body {{ background: var(--paper); color: var(--ink); max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; }}
code, td:first-child {{ font-family: ui-monospace, monospace; font-size: 0.9em;
  overflow-wrap: anywhere; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1rem; }}
dt {{ color: var(--faint); }} dd {{ margin: 0; }}
img {{ max-width: 100%; height: auto; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ border-bottom: 1px solid var(--line); padding: 0.3rem 0.6rem;
  text-align: left; vertical-align: top; }}
.number {{ text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }}
.bad {{ color: var(--bad); }}
</style>
</head>
<body>
<h1>Tuning of <code>{title}</code></h1>
<dl>{facts}</dl>
{picture}
<h2>Parameters</h2>
<p>The share of the variance of log time that each parameter explains on its own. Few
trials per value overestimate it.</p>
<div class="wide"><table>{parameters}</table></div>
<h2>Finalists</h2>
<p>The best recipes, timed again in one interleaved run, and ranked by the median of
their ratios in each round.</p>
<div class="wide"><table>{finalists}</table></div>
<h2>Trials</h2>
<p>Ratios are relative to the untransformed kernel. Trials marked “earlier” were already
known.</p>
<div class="wide"><table>{trials}</table></div>
</body>
</html>
"""

PICTURE = """<p>Filled points are trials of this run, hollow ones those of earlier
runs. In the parallel coordinates, each line is a trial that passed; faster ones are
stronger. In the small charts, each point is the time of a trial with that value; the
line is the median.</p>
<picture>
<source media="(prefers-color-scheme: dark)" srcset="{dark}">
<img src="{light}" alt="Search trace, best recipes, parallel coordinates of trials, and
times by parameter value; the tables below have the numbers.">
</picture>"""


def write_report(report: TuningReport, folder: Path) -> None:
    """Write ``report.html`` and ``report.png`` to a folder, creating it.

    Raises:
        FeinsumError: if matplotlib is not installed.
        OSError: if the folder cannot be written.
    """
    check_plots("a report")
    from feinsum.drawing.tuning_figure import render_tuning

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.png").write_bytes(render_tuning(_make_picture(report), "png"))
    (folder / "report.html").write_text(render_page(report), "utf-8")


def make_figure(report: TuningReport) -> Figure:
    """Draw the figure of a tuning, to show or save.

    Raises:
        FeinsumError: if matplotlib is not installed.
    """
    check_plots("a figure of a tuning")
    from feinsum.drawing.tuning_figure import draw_tuning

    return draw_tuning(_make_picture(report))


def render_html(report: TuningReport) -> str:
    """Render a tuning for a notebook: the results, and the figure if possible."""
    facts = format_html_table(["tuning", report.title], _list_facts(report))
    if not can_plot():
        return facts
    from feinsum.drawing.tuning_figure import render_tuning

    return facts + make_inline_svg(render_tuning(_make_picture(report), "svg"))


def render_page(report: TuningReport, status: str = "") -> str:
    """Render the page of a report, with a picture if matplotlib is installed.

    Args:
        report: the report to render.
        status: progress of the tuning, if it is not finished.
    """
    facts = [*([("status", status)] if status else []), *_list_facts(report)]
    strips = sorted(_make_strips(report.trials), key=lambda strip: -strip.share)
    return PAGE.format(
        title=escape(report.title),
        facts="".join(
            f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts
        ),
        picture=_render_pictures(report) if can_plot() else "",
        parameters=_render_table(
            ["parameter", "values", "share"],
            ([s.name, f"{len(s.values)}", f"{s.share:.2f}"] for s in strips),
        ),
        finalists=_render_table(
            ["recipe", "median", "IQR", "speed-up", "ratio"],
            (
                [
                    str(f.spec),
                    format_time(f.measurement.median_s),
                    format_time(f.measurement.spread_s),
                    f"{f.measurement.speedup:.3g}",
                    f"{f.ratio:.4f}",
                ]
                for f in report.finalists
            ),
        ),
        trials=_render_table(
            ["recipe", "time", "ratio", "status"],
            (_make_row(t, k < report.n_known) for k, t in enumerate(report.trials)),
        ),
    )


def _render_pictures(report: TuningReport) -> str:
    """Render the picture, light and dark, as a part of the page."""
    from feinsum.drawing.tuning_figure import render_tuning

    # <picture> chooses by media query among URLs, not among inline elements
    picture = _make_picture(report)
    return PICTURE.format(
        light=_encode_url(render_tuning(picture, "svg", "light")),
        dark=_encode_url(render_tuning(picture, "svg", "dark")),
    )


def _list_facts(report: TuningReport) -> Iterable[tuple[str, str]]:
    yield "einsum", report.problem.workload_text
    sizes = ", ".join(f"{name} = {n}" for name, n in report.problem.sizes.items())
    yield "sizes", sizes or "none"
    if report.environment is not None:
        environment = report.environment
        yield "device", f"{environment.device}, driver {environment.driver_version}"
    n_passed = sum(trial.is_ok for trial in report.trials)
    yield "trials", f"{len(report.trials)}, {n_passed} passed"
    if not report.finalists:
        return
    best = report.finalists[0].measurement
    yield "best", f"{format_time(best.median_s)}, {report.finalists[0].spec}"
    baseline_s = median(best.baseline_s)
    ratio = f"the best is {best.speedup:.3g} times as fast"
    yield "untransformed", f"{format_time(baseline_s)}, {ratio}"
    if report.roofline_s is not None:
        percent = 100 * report.roofline_s / best.median_s
        yield "roofline", f"{format_time(report.roofline_s)}, {percent:.3g}% reached"
    for name, least_s in report.least_s.items():
        percent = 100 * least_s / best.median_s
        yield f"{name} at least", f"{format_time(least_s)}, {percent:.3g}% reached"


def _make_row(trial: Trial, is_known: bool) -> list[str]:
    earlier = " (earlier)" if is_known else ""
    if trial.median_s is None or trial.ratio is None:
        return [str(trial.spec), "", "", f"{trial.status}{earlier}: {trial.message}"]
    time, ratio = format_time(trial.median_s), f"{trial.ratio:.4g}"
    return [str(trial.spec), time, ratio, f"{trial.status}{earlier}"]


def _render_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Render a table; the first column and ``status`` are texts, others numbers."""
    classes = [
        "" if heading in (headings[0], "status") else ' class="number"'
        for heading in headings
    ]

    def line(tag: str, cells: Sequence[str]) -> str:
        inside = "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>"
            for kind, cell in zip(classes, cells, strict=True)
        )
        return f"<tr>{inside}</tr>"

    return "\n".join([line("th", headings), *(line("td", row) for row in rows)])


def _encode_url(svg: bytes) -> str:
    # in a data URL that is not base64, the # of a color would start a fragment
    return f"data:image/svg+xml;base64,{b64encode(svg).decode()}"


def _make_picture(report: TuningReport) -> TuningPicture:
    sizes = format_sizes(report.problem.sizes)
    return TuningPicture(
        f"{report.title}  {sizes}",
        tuple(
            Point(trial.median_s, k < report.n_known)
            for k, trial in enumerate(report.trials)
        ),
        tuple(_make_bars(report)),
        tuple(_make_strips(report.trials)),
        tuple(_make_coordinates(report.trials)),
    )


def _make_bars(report: TuningReport) -> Iterable[Bar]:
    if report.roofline_s is not None:
        yield Bar("roofline", report.roofline_s, is_limit=True)
    for name, least_s in report.least_s.items():
        yield Bar(f"{name} at least", least_s, is_limit=True)
    for rank, finalist in enumerate(report.finalists[:N_BARS], start=1):
        measured = finalist.measurement
        note = f"  ({measured.speedup:.3g} times as fast as untransformed)"
        yield Bar(f"{rank}. {finalist.spec.name}", measured.median_s, note)
    if report.finalists:
        baseline_s = median(report.finalists[0].measurement.baseline_s)
        yield Bar("untransformed", baseline_s, is_limit=True)


def _make_strips(trials: Sequence[Trial]) -> Iterable[Strip]:
    """Yield the times by value: of the transform, and of its parameters that varied."""
    families = _group_by_family(trials)
    if len(families) > 1:
        passed = [trial for chosen in families.values() for trial in chosen]
        yield Strip("transform", _group_by_value((t.spec.name, t) for t in passed))
    for family, chosen in families.items():
        for name in _find_varied(chosen):
            values = _group_by_value((t.spec.parameters.get(name), t) for t in chosen)
            yield Strip(f"{family}: {name}", values)


def _make_coordinates(trials: Sequence[Trial]) -> Iterable[Coordinates]:
    """Yield coordinates per transform with varied parameters, the fastest first."""
    families = _group_by_family(trials)
    for family in sorted(families, key=lambda f: min(map(_get_seconds, families[f]))):
        chosen = families[family]
        varied = _find_varied(chosen)
        if len(varied) < 2:
            continue  # the strip shows everything already
        axes = tuple((name, tuple(map(str, values))) for name, values in varied.items())
        lines = []
        for trial in chosen:
            parameters = trial.spec.parameters
            ranks = (values.index(parameters.get(n)) for n, values in varied.items())
            lines.append((tuple(ranks), _get_seconds(trial)))
        yield Coordinates(family, axes, tuple(lines))


def _group_by_family(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """Group the trials that passed by the name of their transform."""
    families: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.is_ok:
            families.setdefault(trial.spec.name, []).append(trial)
    return dict(sorted(families.items()))


def _find_varied(trials: Sequence[Trial]) -> dict[str, list[object]]:
    """Find the parameters of one transform that had several values."""
    values = {
        name: _sort_values({t.spec.parameters.get(name) for t in trials})
        for name in trials[0].spec.parameters
    }
    return {name: v for name, v in values.items() if len(v) > 1}


def _get_seconds(trial: Trial) -> float:
    assert trial.median_s is not None
    return trial.median_s


def _group_by_value(
    trials: Iterable[tuple[object, Trial]],
) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Group times by value, in the order of the values."""
    times: dict[object, list[float]] = {}
    for value, trial in trials:
        times.setdefault(value, []).append(_get_seconds(trial))
    return tuple((str(v), tuple(times[v])) for v in _sort_values(times))


def _sort_values(values: Iterable[object]) -> list[object]:
    """Sort numbers first, then all else by its text."""

    def sort_key(value: object) -> tuple[bool, int, str]:
        if isinstance(value, int):
            return False, value, ""
        return True, 0, str(value)

    return sorted(values, key=sort_key)


# browsers do not run scripts that innerHTML inserts, so there is one interval
FOLLOW = """<script>
let shown;
setInterval(async () => {
  try {
    const page = await (await fetch(location)).text();
    if (page !== shown) document.documentElement.innerHTML = shown = page;
  } catch { /* the tuning has ended; its last page stays */ }
}, 2000);
</script>"""

NOT_BEGUN = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Tuning</title>
{FOLLOW}
</head>
<body>The tuning has not started yet.</body>
</html>
"""

LAST_PAGE_S = 4.0
"""Seconds for browsers to fetch the last page; they fetch it every two seconds."""


class LivePage:
    """Serves the report of the trials so far; see ``feinsum tune --live``.

    The page is updated between trials, so as not to disturb timings. At the end, open
    browsers have time to fetch the last page.

    Attributes:
        url: its address, for browsers on this machine.
    """

    def __init__(self) -> None:
        self._page = NOT_BEGUN
        self._trials: list[Trial] = []
        self._is_followed, self._is_latest = False, Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self._is_followed and error is None:
            self._is_latest.wait(LAST_PAGE_S)
        self._server.shutdown()
        self._server.server_close()

    def begin(self, start: TuningStart) -> None:
        """Start the page before the first trial."""
        self._start = start
        self._trials = [*start.earlier]
        self._draw(f"{len(start.earlier)} of {format_count(start.n_trials, 'trial')}")

    def show(self, progress: TuningProgress) -> None:
        """Add a trial to the page."""
        self._trials.append(progress.trial)
        left_s, n_trials = progress.seconds_left, progress.n_trials
        left = "" if left_s is None else f", {timedelta(seconds=round(left_s))} left"
        self._draw(f"{progress.n_done} of {format_count(n_trials, 'trial')}{left}")

    def final(self, finalists: Sequence[Finalist]) -> None:
        """Show the finalists."""
        self._draw("done", tuple(finalists))

    def _draw(self, status: str, finalists: tuple[Finalist, ...] = ()) -> None:
        start = self._start
        report = TuningReport(
            start.problem,
            tuple(self._trials),
            (),
            finalists,
            start.environment,
            len(start.earlier),
            start.roofline_s,
        )
        self._page = render_page(report, status).replace(
            "</head>", f"{FOLLOW}\n</head>"
        )
        self._is_latest.clear()

    def _handler(live) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = live._page
                content = page.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                live._is_followed = True
                if page is live._page:
                    live._is_latest.set()

            def log_message(self, format: str, *args: object) -> None:
                """Suppress logging, since the terminal shows the tuning."""

        return Handler
