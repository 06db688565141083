"""Kernels with a nest for every field and direction: what is alike is done once."""

from __future__ import annotations

import os
import pty
import sys
from dataclasses import replace
from functools import partial
from threading import Barrier, BoundedSemaphore, Timer

import loopy as lp
import numpy as np
import pytest

from feinsum import extras
from feinsum.measure.verdicts import Verdict, VerificationRequest
from feinsum.memory import use_fresh_memory
from feinsum.raising import raise_kernel
from feinsum.records import OK
from feinsum.retrieval import einsum_trials, verifiers
from feinsum.retrieval.generating import find_duplicates
from tests.docs.pages import ROOT
from tests.raising.interpreter import run
from tests.raising.right_hand_sides import arguments, wave
from tests.raising.test_programs import on_device
from tests.retrieval.facts import fact, here
from tests.retrieval.oracle import Oracle
from tests.retrieval.support import predicted
from tests.transforms.support import LOOPY_WARNINGS
from tests.tune import odd_transforms
from tests.tune.odd_transforms import odd_einsum, odd_spec

pytestmark = LOOPY_WARNINGS


@pytest.fixture(scope="module")
def unit():
    return wave(5, 3)


@pytest.fixture(scope="module")
def found(unit):
    return predicted(unit)


def test_every_nest_gets_a_recipe_and_the_result_is_right(unit, found):
    """Code was generated for nests of seven kinds; that of all 17 is right."""
    assert len(found.applied) == len(found.nests) == 17
    assert len(find_duplicates(found.raised, found.nests)) == 17 - 7
    given = arguments(unit)
    results = on_device(found.t_unit, given)
    assert sorted(results) == ["ru", "rx", "ry", "rz"]
    written = {name: np.full_like(value, np.nan) for name, value in results.items()}
    expected = run(unit, given | written)
    for name, value in results.items():
        np.testing.assert_allclose(value, expected[name], 1e-12, 1e-12)


def test_what_has_another_layout_or_tag_is_not_alike(unit, found):
    """One of three gradients is not like the others then, and neither what reads it."""
    specs = {one.nest.instructions: one.candidates for one in found.nests}

    def n_kinds(changed: lp.TranslationUnit) -> int:
        raised = raise_kernel(changed)
        nests = [
            replace(found.nests[0], nest=nest, candidates=specs[nest.instructions])
            for nest in raised.raised
        ]
        return len(nests) - len(find_duplicates(raised, nests))

    assert n_kinds(unit) == 7
    assert n_kinds(lp.tag_array_axes(unit, "gy", "N0,N1")) == 9
    assert n_kinds(lp.add_dtypes(unit, {"rz": np.float64})) == 7


@pytest.fixture
def verified(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FEINSUM_NUM_THREADS", "2")
    with use_fresh_memory():
        yield Oracle(tmp_path, monkeypatch)


def test_all_nests_are_tried_in_one_kernel(unit, verified, monkeypatch):
    """17 nests have their recipes in one kernel, which is right and faster.

    Code is generated for a sample of it, which has each nest once, for all of it, and
    for the given kernel.
    """
    generate, generated = lp.generate_code_v2, []
    monkeypatch.setattr(
        lp, "generate_code_v2", lambda x: generated.append(x) or generate(x)
    )
    verified.says(
        **dict.fromkeys(
            ("generic", "rowwise", "packed", "blocked", "unroll"), (1e-3, 1e-2)
        )
    )
    made = predicted(unit, verify=True, policy="loose")
    assert len(made.applied) == 17
    assert len(verified.compared) == 1
    assert not verified.asked
    assert len(generated) == 3


def test_processes_that_answer_at_once_take_turns_with_their_times(
    tmp_path, monkeypatch
):
    """Real recipes, two at a time; every answer is that of its question."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FEINSUM_TRANSFORMS", odd_transforms.__name__)
    monkeypatch.setenv("FEINSUM_NUM_THREADS", "2")
    record = fact(odd_einsum(), odd_spec("odd_right"))
    questions = [
        VerificationRequest(
            record.workload_text,
            record.spec,
            here().device.id,
            einsum_trials.MEMORY_BYTES,
            {"N0": n},
            600.0,
        )
        for n in (64, 128)
    ]
    steps: list[None] = []
    lock = tmp_path / "lock"
    requests = [
        partial(verifiers.request_verdict, replace(asked, timing_lock=str(lock)))
        for asked in questions
    ]
    with use_fresh_memory():
        answers = dict(verifiers.request_together(requests, lambda: steps.append(None)))
    assert len(steps) == 2
    for k, question in enumerate(questions):
        assert answers[k].is_ok, answers[k]
        assert min(answers[k].least_s, answers[k].baseline_s) > 0
        assert answers[k].sizes == question.sizes


@pytest.mark.parametrize("n_threads", [1, 3])
def test_as_many_recipes_are_verified_at_once_as_there_are_cores(
    monkeypatch, n_threads
):
    """Each waits until so many are being verified; there are never more."""
    monkeypatch.setenv("FEINSUM_NUM_THREADS", str(n_threads))
    together, running, most = Barrier(n_threads), BoundedSemaphore(n_threads), 30.0

    def ask() -> Verdict:
        assert running.acquire(blocking=False)
        together.wait(most)
        running.release()
        return Verdict(OK)

    answers = verifiers.request_together([ask] * (2 * n_threads), lambda: None)
    assert dict(answers) == dict.fromkeys(range(2 * n_threads), Verdict(OK))


class Late(Timer):
    """A timer whose time is over when a test says so."""

    made: Late

    def start(self) -> None:
        type(self).made = self

    def join(self, timeout=None) -> None:
        """It has no thread."""


@pytest.mark.parametrize("is_late", [False, True])
def test_what_takes_more_than_a_second_is_shown_on_a_terminal(monkeypatch, is_late):
    """And nothing of what does not."""
    monkeypatch.setattr(extras, "Timer", Late)
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as context:
        context.setattr(sys, "stderr", terminal)
        with extras.show_progress(2, "verifying recipes") as advance:
            advance()
            if is_late:
                Late.made.function()
            advance()
        terminal.write("end")
    shown = ""
    while not shown.endswith("end"):  # what is written comes in parts
        shown += os.read(master, 65536).decode()
    os.close(master)
    assert Late.made.interval == 1.0
    assert ("verifying recipes" in shown) == is_late
