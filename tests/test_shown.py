"""How public values show themselves: in a line or two, and as HTML in notebooks."""

import html5lib
import pytest

import feinsum
from feinsum.drawing import Chart, Dot, plots
from feinsum.programs import chain
from feinsum.raising import raise_kernel
from feinsum.records import Match, MatchLevel
from feinsum.tuning import Finalist
from feinsum.words import format_brief
from tests.db.factories import make_record
from tests.tune.test_report import report, trial

A, x = feinsum.array("A", ("n", 6)), feinsum.array("x", 6)
MATVEC = feinsum.einsum("ij,j->i", A, x)
MATMUL = feinsum.einsum("ij,jk->ik", *[feinsum.array(name, (64, 64)) for name in "AB"])
RECORD = make_record()
BEST = (Finalist(trial(1).spec, RECORD.measurement, 1.0),)
REPORT = report([trial(0), trial(1)], BEST)
PROGRAM = feinsum.program()
PROGRAM.output(chain(PROGRAM, *[PROGRAM.input(name, (4, 4)) for name in "ABC"]))
CHART = Chart("a CPU", 50.0, {"float64": 100.0}, [Dot("mine", 2.0, 60.0, True)])


def long_einsum():
    arrays = [feinsum.array(f"operand{k}", (9, 9)) for k in range(60)]
    terms = [f"{{i{k}}}{{i{k + 1}}}" for k in range(60)]
    return feinsum.einsum(", ".join(terms) + " -> {i0}{i60}", *arrays)


VALUES = [
    (MATVEC, "ij,j->i"),
    (long_einsum(), "{i0}{i1}"),
    (feinsum.FunctionalBatchedEinsum.idealized(MATVEC), "ij,j->i"),
    (feinsum.canonicalize(MATVEC), "fe2-"),
    (RECORD, str(RECORD.spec)),
    (RECORD.measurement, "ms"),
    (RECORD.environment, RECORD.environment.device.name),
    (Match(MatchLevel.EXACT, "same device", (RECORD,) * 50), "exact: 50 records"),
    (Match(MatchLevel.MISS, "nothing is recorded"), "miss: nothing"),
    (REPORT, "passed"),
    (REPORT.trials[0], "ok"),
    (feinsum.plan(MATMUL, processes=4), "4 processes"),
    (feinsum.bound(MATVEC, sizes={"n": 1000}), "at least"),
    (PROGRAM.build(), "-> "),
    (raise_kernel(feinsum.generate_loopy(MATVEC)), "feinsum_kernel"),
    (CHART, "50 GB/s"),
]


@pytest.mark.parametrize(("value", "words"), VALUES, ids=lambda v: type(v).__name__)
def test_a_value_is_shown_in_a_few_lines(value, words):
    """``repr`` names the class, says what matters, and ends."""
    shown = repr(value)
    assert shown.startswith(f"<{type(value).__name__} ")
    assert words in shown
    assert len(shown) < 350
    assert "\n" not in shown


def test_a_long_line_is_cut():
    """Whatever is shown has an end."""
    assert len(format_brief(1, "x" * 1000)) < 320


@pytest.mark.parametrize(
    "value",
    [MATVEC, Match(MatchLevel.EXACT, "<here>", (RECORD,)), REPORT],
    ids=lambda value: type(value).__name__,
)
def test_html_of_a_value_is_well_formed(value):
    """A strict parser reads it, and texts are escaped."""
    text = value._repr_html_()
    html5lib.HTMLParser(strict=True).parseFragment(text.partition("<svg")[0])
    assert "<table>" in text
    assert "<here>" not in text


@pytest.mark.parametrize("value", [MATVEC, CHART], ids=lambda v: type(v).__name__)
def test_pictures_are_svg(value):
    """The induced graph of an einsum, and the roofline of a chart."""
    assert "<svg" in value._repr_svg_()


def test_without_matplotlib_tables_remain(monkeypatch):
    """Notebooks show what they can."""
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    assert MATVEC._repr_svg_() is None
    assert CHART._repr_svg_() is None
    assert "<svg" not in MATVEC._repr_html_() + REPORT._repr_html_()


def test_a_report_is_plotted():
    """The figure of matplotlib, which can be saved."""
    figure = REPORT.plot()
    assert figure.axes[0].get_title(loc="left") == "Search trace"
