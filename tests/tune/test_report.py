"""The report of a tuning, at its end and while it runs: complete, and safe to open."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from threading import Timer
from urllib.request import urlopen

import pytest

from feinsum import autotune
from feinsum.records import InMemoryStore, Processor, TransformSpec, Trial
from feinsum.tuning import (
    Finalist,
    TuningReport,
    TuningStart,
    make_problem,
    write_report,
)
from feinsum.tuning.progress import combine_callbacks
from feinsum.tuning.report import LivePage, make_figure
from feinsum.tuning.tuning import compute_least_times
from tests.db.factories import make_environment, make_measurement, make_peaks
from tests.tune.odd_transforms import odd_einsum

PROBLEM = make_problem(odd_einsum(), {"N": 64})
EVIL = "error: <script>alert(1)</script> & more"


def spec(k):
    return TransformSpec("rowwise", 1, {"block": 2**k, "index": "ab"[k % 2]})


def trial(k, **fields):
    known = {"status": "ok", "median_s": 1e-3 / (k + 1), "ratio": 1 / (k + 1)}
    return Trial(
        PROBLEM.form.key,
        PROBLEM.workload_text,
        PROBLEM.sizes,
        make_environment(),
        spec(k),
        **(fields or known),
    )


def report(trials, finalists=()):
    return TuningReport(
        PROBLEM, tuple(trials), (), finalists, make_environment(), 1, 1e-5
    )


class Tags(HTMLParser):
    """Which elements are open, and what they refer to."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.addresses = [], set(), []

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)
        known = dict(attributes)
        self.addresses += [known[n] for n in ("src", "srcset", "href") if n in known]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The report of trials of which one failed badly."""
    place = tmp_path_factory.mktemp("report") / "new"
    trials = [*map(trial, range(6)), trial(7, status="build-failed", message=EVIL)]
    finalists = tuple(Finalist(spec(k), make_measurement(), 1.0) for k in (5, 4))
    write_report(report(trials, finalists), place)
    return place


def test_the_page_stands_alone(folder):
    """Well-formed, nothing but data inside, no script, and a dark side."""
    page = (folder / "report.html").read_text("utf-8")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert len(tags.addresses) == 2
    assert all(a.startswith("data:image/svg+xml;base64,") for a in tags.addresses)
    assert "prefers-color-scheme: dark" in page


def test_the_page_has_every_trial(folder):
    """Each recipe, and why it failed, as text that nothing executes."""
    page = (folder / "report.html").read_text("utf-8")
    assert all(escape(str(spec(k))) in page for k in (*range(6), 7))
    assert escape(EVIL) in page
    assert EVIL not in page
    assert "7, 6 passed" in page


def test_the_page_has_a_mark_for_every_cache_that_was_measured(tmp_path):
    """The least time of each, and how much of its bandwidth was used."""
    finalists = (Finalist(spec(5), make_measurement(1e-3), 1.0),)
    marked = replace(report([trial(0)], finalists), least_s={"L1": 5e-4, "L2": 2e-4})
    write_report(marked, tmp_path)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<dt>L1 at least</dt>" in page
    assert "50% reached" in page
    assert "20% reached" in page


def test_caches_have_least_times_where_they_were_measured():
    """By the limits in the store; none without."""
    where = environment_with_caches()
    store = InMemoryStore()
    assert compute_least_times(PROBLEM, store, where) == {}
    limits = replace(make_peaks(where.device), cache_bytes_per_s={"L1": 4e11})
    store.add(limits)
    (found,) = compute_least_times(PROBLEM, store, where).items()
    assert found[0] == "L1"
    assert found[1] * 4e11 >= 8 * 64


def environment_with_caches():
    caches = {"L1d": 32 << 10, "L2": 512 << 10}
    processor = Processor("", 25, 1, 1, "zen3", ("avx", "avx2"), 2, caches)
    made = make_environment()
    return replace(made, device=replace(made.device, processor=processor))


def test_the_picture_is_a_png(folder):
    """By its signature."""
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG\r\n")


def coordinates(trials):
    """The heights of the lines of each chart of parallel coordinates, by its title."""
    charts = {a.get_title(loc="left"): a for a in make_figure(report(trials)).axes}
    return {
        name.partition(":")[0]: [
            list(line.get_ydata())
            for line in axes.lines
            if len(set(line.get_xdata())) > 1  # not the vertical axes themselves
        ]
        for name, axes in charts.items()
        if name.endswith("one line per trial")
    }


def test_trials_that_passed_are_lines_across_the_parameters():
    """A line each and the best again; on each axis a value has a band of its own."""
    failed = trial(7, status="build-failed", message=EVIL)
    *lines, best = coordinates([*map(trial, range(6)), failed])["rowwise"]
    assert best == lines[-1]
    for k, (block, index) in zip(range(6), lines, strict=True):
        assert k / 6 < block < (k + 1) / 6
        assert k % 2 / 2 < index < (k % 2 + 1) / 2


def test_a_running_tuning_has_no_chart_of_finalists():
    """It would be empty."""
    running = replace(report(map(trial, range(6))), roofline_s=None)
    titles = [axes.get_title(loc="left") for axes in make_figure(running).axes]
    assert titles[:2] == ["Search trace", "rowwise: one line per trial"]


def test_one_parameter_needs_no_parallel_coordinates():
    """The times by its value say it all."""
    chosen = [replace(trial(k), spec=spec(2 * k)) for k in range(3)]
    assert coordinates(chosen) == {}
    assert coordinates([trial(0)]) == {}


@pytest.mark.parametrize(
    "trials",
    [[], [trial(0, status="trial-crashed")], [trial(0)]],
    ids=["none", "failed", "one"],
)
def test_there_may_be_little_to_report(trials, tmp_path):
    """No trial, none that passed, or one alone: a report all the same."""
    write_report(report(trials), tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 1000


def read(page):
    with urlopen(page.url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/html")
        return answer.read().decode()


@pytest.mark.usefixtures("trials_here")
def test_the_page_has_every_trial_once_it_is_made():
    """While the tuning runs; at the end, the finalists stand there as well."""
    seen = []
    with LivePage() as page:
        assert "not started" in read(page)
        report = autotune(
            odd_einsum(),
            sizes={"N": 64},
            database=InMemoryStore(),
            n_trials=2,
            strategy="random",
            on_start=page.begin,
            on_progress=combine_callbacks(page.show, lambda _: seen.append(read(page))),
            on_final=page.final,
        )
        last = read(page)
    recipes = [escape(str(trial.spec)) for trial in report.trials]
    for k, text in enumerate(seen, start=1):
        assert f"{k} of 2 trials" in text
        assert [recipe in text for recipe in recipes] == [True] * k + [False] * (2 - k)
    assert "<dd>done</dd>" in last
    finalist = escape(str(report.finalists[0].spec))
    assert finalist in last.partition("<h2>Finalists</h2>")[2].partition("<h2>")[0]
    with pytest.raises(OSError, match="refused"):
        read(page)


def test_a_browser_gets_the_last_page():
    """The end waits for who read an earlier page, and fetches it again for a while."""
    problem = make_problem(odd_einsum(), {"N": 64})
    last = []
    with LivePage() as page:
        page.begin(TuningStart(problem, make_environment(), 2, (), None))
        assert "0 of 2 trials" in read(page)
        page.final([])
        browser = Timer(0.2, lambda: last.append(read(page)))
        browser.start()
    browser.join()
    assert "<dd>done</dd>" in last[0]
