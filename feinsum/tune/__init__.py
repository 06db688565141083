"""Tuning: a search over recipes, each tried in a process of its own."""

from feinsum.tune.autotune import autotune, record_facts
from feinsum.tune.efforts import (
    LIMITS,
    Limits,
    ensure_measured,
    measure_if_possible,
)
from feinsum.tune.isolation import IsolatedBench
from feinsum.tune.outcome import TrialOutcome
from feinsum.tune.peaks import peaks_of
from feinsum.tune.problem import Problem, default_sizes, make_problem
from feinsum.tune.progress import Finalist, TuningProgress, TuningReport, TuningStart
from feinsum.tune.report import write_report
from feinsum.tune.search import Search, Strategy, make_search

__all__ = [
    "LIMITS",
    "Finalist",
    "IsolatedBench",
    "Limits",
    "Problem",
    "Search",
    "Strategy",
    "TrialOutcome",
    "TuningProgress",
    "TuningReport",
    "TuningStart",
    "autotune",
    "default_sizes",
    "ensure_measured",
    "make_problem",
    "make_search",
    "measure_if_possible",
    "peaks_of",
    "record_facts",
    "write_report",
]
