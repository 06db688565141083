"""Recipes are tried in the kernel that the user has: together, and then alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import loopy as lp
import pytest
from pymbolic import primitives as p
from pymbolic import var

from feinsum import generate_loopy
from feinsum.memory import use_fresh_memory
from feinsum.raising import LoopNest, raise_kernel
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.retrieval import identity, kernel_trials, look_up, matching
from feinsum.retrieval.kernel_times import (
    RAGGED,
    KernelTimes,
    choose_ragged_sizes,
    choose_sizes,
)
from feinsum.retrieval.kernel_trials import KernelTrials
from feinsum.select import Ratio
from feinsum.transforms import REGISTRY, Parameters, Transform
from tests.docs.pages import ROOT
from tests.retrieval.facts import fact
from tests.retrieval.kernels import two_nests
from tests.retrieval.support import given
from tests.tune.odd_transforms import ODD, odd_einsum

HOST = {"device": "host", "effort": "estimate"}


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch) -> Iterator[None]:
    """Verification is on, with a cache of its own."""
    monkeypatch.setenv("FEINSUM_VERIFY", "on")
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with use_fresh_memory():
        yield


class Times:
    """Times of forms as a test says, in place of measured ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.together, self.alone = 2.0, [2.0, 2.0]
        self.n_timed: list[int] = []
        monkeypatch.setattr(KernelTrials, "_time_units", self._times_of)
        monkeypatch.setattr(KernelTrials, "verify_together", lambda *_: None)

    def _times_of(self, units, form):
        """Speed-ups of the one kernel with the recipes of a form."""
        self.n_timed.append(len(form))
        speedup = self.together if len(form) > 1 else self.alone[min(form)]
        ratio = Ratio(speedup, speedup, speedup)
        return (KernelTimes(1.0, 1.0 / speedup, (ratio,)),)


@pytest.fixture
def times(monkeypatch) -> Times:
    return Times(monkeypatch)


def looked_up():
    unit = two_nests().copy(target=lp.CTarget())
    return unit, look_up(unit, database=InMemoryStore(), **HOST)


def test_what_is_faster_together_is_not_tried_alone(times):
    """One kernel is timed, and all nests have their recipes."""
    _, found = looked_up()
    assert times.n_timed == [2]
    assert len(found.applied) == 2
    assert found.is_settled
    gain = r"gain: 2 times as fast as the given kernel \(.*\) at n=\d+, timed on"
    assert re.search(gain, str(found))


def test_nests_that_gain_nothing_lose_their_recipes(times):
    """Where the whole is no faster, each is tried alone."""
    times.together, times.alone = 0.9, [0.5, 3.0]
    unit, found = looked_up()
    first, second = found.nests
    assert first.applied is None
    assert "no faster here than the given kernel" in first.failures[0][1]
    assert second.applied is not None
    assert found.t_unit is not unit
    assert "gain: 3 times" in str(found)


def test_of_what_gains_alone_but_not_together_the_best_is_used(times):
    times.together, times.alone = 0.9, [1.5, 3.0]
    _, found = looked_up()
    assert [nest.applied is not None for nest in found.nests] == [False, True]


def test_where_nothing_gains_the_kernel_comes_back(times):
    times.together, times.alone = 0.9, [0.8, 0.7]
    unit, found = looked_up()
    assert found.t_unit is unit
    assert not found.is_changed


def test_several_forms_are_timed_with_one_run_of_the_given_kernel(monkeypatch):
    """Their results are cached one by one: none of them is tried again."""
    asked = []
    request = kernel_trials.request_verdict

    def counted(question):
        asked.append(len(question.kernels.programs))
        return request(question)

    monkeypatch.setattr(kernel_trials, "request_verdict", counted)
    monkeypatch.setattr(Ratio, "is_faster", False)  # nothing is, together or alone
    _, found = looked_up()
    assert not found.is_changed
    # Two ways to build the given kernel and each other one. Candidates that are tried
    # one after the other follow.
    assert asked[:2] == [4, 6]


def with_loop_cut(t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters):
    """Forget the rows beyond the last whole tile."""
    size = nest.extent(nest.einsum.output[0])
    end = var(size.name) - var(size.name) % 32
    row = nest.inames[nest.einsum.output[0]]
    kernel = t_unit[nest.kernel_name]
    instructions = [
        insn.copy(
            expression=p.If(p.Comparison(var(row), "<", end), insn.expression, 0.0)
        )
        if insn.id in nest.instructions
        else insn
        for insn in kernel.instructions
    ]
    return t_unit.with_kernel(kernel.copy(instructions=instructions))


def test_a_recipe_without_a_remainder_is_found_out(monkeypatch):
    """It is right at the sizes at which it is timed, which tiles divide."""
    cut = Transform("cut", 1, "a test transform", ODD["odd_right"].space, with_loop_cut)
    monkeypatch.setitem(REGISTRY, ("cut", 1), cut)
    for module in (identity, matching):  # as if it were one of ours
        monkeypatch.setattr(module, "is_ours", lambda _spec: True)
    record = fact(odd_einsum(), TransformSpec("cut", 1, {"size": 4}), speedup=9.0)
    kernel = generate_loopy(odd_einsum())
    found = look_up(kernel, database=given(record), device="host", effort="recorded")
    assert found.t_unit is kernel
    ((_, why),) = found.nests[0].failures
    assert "wrong-result" in why


def test_ragged_sizes_are_those_that_a_kernel_allows():
    """None where all sizes are known; none that its assumptions exclude."""
    unit = generate_loopy(odd_einsum())
    kernel = unit.default_entrypoint
    (name,) = kernel.outer_params()
    sizes = {name: 1024}
    assert choose_ragged_sizes(kernel, sizes, []) == ()
    assert choose_ragged_sizes(kernel, sizes, [name]) == ({name: 1}, {name: RAGGED[0]})
    for words, expected in (
        (f"{name} >= 2", ({name: RAGGED[0]},)),
        (f"{name} mod 8 = 0", ()),
    ):
        assumed = lp.assume(unit, words).default_entrypoint
        assert choose_ragged_sizes(assumed, sizes, [name]) == expected


@pytest.mark.parametrize("order", ["heavy light", "light heavy"])
def test_the_heaviest_einsum_decides_how_long_a_run_takes(order):
    """A size that all einsums share is not that of the one with small arrays."""
    nests = {
        "heavy": "y[i, b] = sum([j, k], A[i, j, k])",
        "light": "z[i, j] = 2*B[i, j]",
    }

    def sizes_of(*names):
        unit = lp.make_kernel(
            ["{[i, j]: 0<=i<n and 0<=j<5}", "{[k, b]: 0<=k<33 and 0<=b<13}"],
            [nests[name] for name in names],
            [
                lp.GlobalArg("A", "float64", shape=("n", 5, 33)),
                lp.GlobalArg("B", "float64", shape=("n", 5)),
                "...",
            ],
            lang_version=(2018, 2),
        )
        return choose_sizes(unit.default_entrypoint, raise_kernel(unit))["n"]

    assert sizes_of("heavy") < sizes_of("light")
    assert sizes_of(*order.split()) == sizes_of("heavy")
