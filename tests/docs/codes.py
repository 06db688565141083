"""Codes and settings as the source states them, found without running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from feinsum.options import DEPRECATED_VARIABLES
from feinsum.service.settings import PREFIX, Settings
from tests.docs.pages import ROOT, files

__all__ = [
    "deprecated",
    "invalid_einsum_rules",
    "plan_rules",
    "program_rules",
    "refusal_rules",
    "settings",
    "sparse_rules",
]

DISTRIBUTED, RUN = ROOT / "feinsum" / "distributed", ROOT / "feinsum" / "run.py"

_CODE = re.compile(r"[a-z]+(-[a-z]+)*")
_REFUSING = re.compile(
    r"_?make_(\w+_)?refusal|_?refuse\w*|NotAnEinsumError|RefusedNest"
)


@cache
def refusal_rules() -> set[str]:
    """Every code with which raising, or a caller of it, refuses a kernel."""
    found: set[str] = set()
    for call in _calls(ROOT / "feinsum"):
        if _REFUSING.fullmatch(_name(call)):
            rules = [word.value for word in call.keywords if word.arg == "rule"]
            found |= _codes([*call.args, *rules])
    return found


def invalid_einsum_rules() -> set[str]:
    """Every code in ``InvalidEinsumError.rules`` but those of the checker's table."""
    calls = _calls(ROOT / "feinsum", without=(DISTRIBUTED, RUN))
    return _rules(call for call in calls if _name(call) != "ProgramError")


def plan_rules() -> set[str]:
    """Every code in ``PlanError.rules``."""
    calls = [*_calls(DISTRIBUTED), *_calls(RUN), *_calls(ROOT / "feinsum" / "programs")]
    planning = (call for call in calls if _name(call) != "ProgramError")
    return _rules(planning)


def program_rules() -> set[str]:
    """Every code in ``ProgramError.rules``."""
    calls = _calls(ROOT / "feinsum")
    return _rules(call for call in calls if _name(call) == "ProgramError")


def _rules(calls: Iterable[ast.Call]) -> set[str]:
    found: set[str] = set()
    for call in calls:
        if _name(call) in ("Violation", "name_violations"):
            found |= _codes(call.args[:1])
        for word in call.keywords:
            if word.arg == "rules" and isinstance(word.value, ast.Tuple):
                found |= _codes(word.value.elts)
    return found


def sparse_rules() -> set[str]:
    """Every code with which a sparse array, or a file of one, is rejected."""
    found: set[str] = set()
    for call in _calls(ROOT / "feinsum" / "sparse"):
        if _name(call) == "reject":
            found |= _codes(call.args[:1])
    return found


@cache
def settings() -> set[str]:
    """Every environment variable that the code names, those of the service too."""
    texts = [p.read_text() for p in files(".py") if ROOT / "tests" not in p.parents]
    named = {name for text in texts for name in re.findall(r"FEINSUM_[A-Z_]+", text)}
    return {name for name in named if not name.endswith("_")} - deprecated()


def deprecated() -> set[str]:
    """Variables that one more release reads, without a place in the documentation."""
    served = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    return served | DEPRECATED_VARIABLES.keys()


def _calls(folder: Path, without: tuple[Path, ...] = ()) -> Iterator[ast.Call]:
    for path, calls in _calls_by_file().items():
        is_left_out = any(path.is_relative_to(one) for one in without)
        if path.is_relative_to(folder) and not is_left_out:
            yield from calls


@cache
def _calls_by_file() -> dict[Path, list[ast.Call]]:
    """Those of the package, each file parsed once."""
    return {
        path: [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        ]
        for path in files(".py")
        if path.is_relative_to(ROOT / "feinsum")
    }


def _name(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _codes(arguments: list[ast.expr]) -> set[str]:
    values = [a.value for a in arguments if isinstance(a, ast.Constant)]
    return {v for v in values if isinstance(v, str) and _CODE.fullmatch(v)}
