"""``explain`` tells what computes a call of arrays, and what became of its kernel."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

from feinsum import call_einsum, explain, generate_loopy
from feinsum.calling import prepare_call, read_call
from feinsum.calling.by_numpy import FallbackCall
from feinsum.calling.host.builder import BuildRequest, build_elsewhere
from feinsum.calling.host.general import SharedKernel
from feinsum.calling.kernel_cache import Calls
from feinsum.calling.operands import get_form
from feinsum.canonical import canonicalize
from feinsum.contraction.direct import compute
from feinsum.contraction.pairwise import IS_BUILT
from feinsum.errors import (
    BuildError,
    InvalidEinsumError,
    NotAKernelError,
    RecordNotFoundError,
)
from feinsum.memory import get_remembered, use_fresh_memory
from feinsum.records import InMemoryStore
from feinsum.select import PairedTimes
from tests.retrieval.facts import fact
from tests.retrieval.recipes import first_recipe
from tests.retrieval.support import given
from tests.tune.odd_transforms import odd_einsum


@pytest.fixture(autouse=True)
def _usual(monkeypatch):
    monkeypatch.setenv("FEINSUM_EFFORT", "")
    monkeypatch.setenv("FEINSUM_DEVICE", "")
    # the user's database of these tests does not exist, which explanations name
    monkeypatch.setenv("FEINSUM_LAYERS", "packaged")
    with use_fresh_memory():
        yield


def matrices():
    return np.ones((30, 40)), np.ones((40, 50)), np.ones((50, 7))


def test_steps_and_what_computes_them():
    """With their indices and multiplications; nothing is computed for it."""
    lines = explain("ij,jk,kl->il", *matrices()).splitlines()
    assert lines[:4] == [
        "call: ij,jk,kl->il of float64 (30, 40), float64 (40, 50), float64 (50, 7)",
        "result: float64 (30, 7)",
        "step 1: jk,kl->jl, 1.4e+04 multiplications",
        "step 2: ij,jl->il, 8.4e+03 multiplications",
    ]
    by = "the compiled extension" if IS_BUILT else "Python"
    assert lines[4].startswith(f"computed by: {by}, in 2 steps")
    assert lines[5].startswith("kernel: none; the calls of this process have not yet")


def test_what_numpy_computes():
    """Objects have no kernel, and are multiplied as they stand."""
    given = np.array([1, 2], dtype=object), np.array([3, 4], dtype=object)
    text = explain("i,i->", *given)
    assert "computed by: numpy.einsum" in text
    call_einsum("i,i->", *given)
    assert explain("i,i->", *given).endswith("kernel: none fits such calls")


def test_every_state_of_a_kernel():
    """None yet, being built, in its trial, lost, used; and a build that failed."""
    A, B, _ = matrices()
    call_einsum("ij,jk->ik", A, B)
    (call,) = get_remembered(Calls).general.values()

    def kernel() -> str:
        return explain("ij,jk->ik", A, B).splitlines()[-1]

    assert kernel().startswith("kernel: none; one of an earlier process is tried after")
    assert "; 1 call took" in kernel()
    call.shared = SharedKernel(build=Future())
    assert kernel().startswith("kernel: another process is building one, since 1 call")
    call.kernel, call._trial = call, PairedTimes([1.0, 1.0], [1.0])
    assert kernel() == "kernel: in its trial against the steps, after 1 round"
    call.kernel, call.shared, call.has_had_trial = None, None, True
    assert kernel() == "kernel: none: the steps were not slower than it"
    call.built = SimpleNamespace(recipe="generic@2()")
    assert kernel() == "kernel: used: it was faster than the steps (generic@2())"
    call.built, call.has_had_trial = None, False
    get_remembered(Calls).builds.expected_s = inf
    assert kernel().startswith("kernel: none: the last build of this process failed")


@pytest.mark.parametrize(
    ("variable", "value"), [("FEINSUM_EFFORT", "estimate"), ("FEINSUM_DEVICE", "host")]
)
def test_settings_with_which_the_first_call_builds(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    lines = explain("ij,jk->ik", *matrices()[:2]).splitlines()
    assert lines[-2:] == [
        "computed by: a kernel of its own",
        f"kernel: built by the first call, since {variable} is set",
    ]


def test_a_kernel_that_failed_and_one_that_is_used(monkeypatch):
    """With a database that is an object the first call builds its kernel."""
    A, B, _ = matrices()
    call_einsum("ij,jk->ik", A, B, effort="estimate")
    (call,) = get_remembered(Calls).quick.values()
    key = next(iter(get_remembered(Calls).general), None)
    assert key is None
    monkeypatch.setattr("feinsum.calling.explanation.find_call", lambda *_: call)
    text = explain("ij,jk->ik", A, B)
    assert "computed by: a kernel of its own" in text
    assert text.splitlines()[-1] == f"kernel: {call.kernel.spec}"
    recorded = replace(call, kernel=replace(call.kernel, spec=None, is_retrieved=True))
    monkeypatch.setattr("feinsum.calling.explanation.find_call", lambda *_: recorded)
    assert explain("ij,jk->ik", A, B).endswith("kernel: a recorded recipe")
    failed = FallbackCall(call.parsed, BuildError("no compiler"))
    monkeypatch.setattr("feinsum.calling.explanation.find_call", lambda *_: failed)
    assert explain("ij,jk->ik", A, B).endswith("kernel: none: no compiler")


def test_a_kernel_that_was_prepared_computes_calls_at_once():
    """The extension leaves long calls to it from then on."""
    A, B = np.ones((300, 400)), np.ones((400, 50))
    call = prepare_call("ij,jk->ik", A, B)
    assert explain("ij,jk->ik", A, B).splitlines()[-2:] == [
        "computed by: a kernel of its own",
        f"kernel: {call.recipe}",
    ]
    assert compute("ij,jk->ik", (A, B)) is NotImplemented


def test_a_kernel_that_was_built_earlier(tmp_path, monkeypatch):
    """By tuning, or in an earlier process; calls try it, whatever facts there are."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path))
    X = np.ones((70_000, 40))
    request = BuildRequest.of("ij,ij->i", [get_form(X)] * 2, (0, 1), None)
    recipe = build_elsewhere(request).recipe
    expected = f"one that was built earlier ({recipe}) is tried"
    for start in ("kernel: none yet; ", "kernel: none; "):
        *_, line = explain("ij,ij->i", X, X.copy()).splitlines()
        assert line.startswith(f"{start}{expected}")
        call_einsum("ij,ij->i", X, X.copy())


SCALED = "bij,b->bij", np.ones((30, 40, 50)), np.ones(30)


def test_a_recorded_recipe_of_merged_axes(monkeypatch):
    """It is what a call uses, with ``on_miss="raise"``, too."""
    einsum = read_call(*SCALED).einsum
    known = fact(einsum, first_recipe(canonicalize(einsum).einsum))
    monkeypatch.setenv("FEINSUM_VERIFY", "off")
    facts = given(known)
    *_, recorded, kernel = explain(*SCALED, database=facts).splitlines()
    assert recorded.startswith(
        f"recorded, with merged axes: exact ({known.spec} ran 10.0 times as fast"
    )
    assert kernel == "kernel: built by the first call, since its options require one"
    call_einsum(*SCALED, database=facts, on_miss="raise")
    call_einsum(*SCALED, database=facts)
    *_, computation, _, kernel = explain(*SCALED, database=facts).splitlines()
    assert computation == "computed by: a kernel of its own"
    assert kernel == "kernel: a recorded recipe"
    with pytest.raises(RecordNotFoundError, match="no fact is recorded"):
        call_einsum(*SCALED, database=InMemoryStore(), on_miss="raise")


def test_a_mistyped_database(tmp_path):
    """It is named as a layer that was skipped."""
    path = tmp_path / "typo.sqlite"
    *_, layer, _ = explain(*SCALED, database=path).splitlines()
    assert layer.startswith(f"layer database ({path}): skipped, because there is no")


def test_bad_calls_and_other_targets():
    """Subscripts that do not match are refused; kernels are explained as before."""
    with pytest.raises(InvalidEinsumError, match="operand 1"):
        explain("ij,jk->ik", np.ones((2, 3)), np.ones((4, 5)))
    with pytest.raises(NotAKernelError):
        explain(3)
    text = explain(generate_loopy(odd_einsum()), database=InMemoryStore())
    assert text.startswith("raised: ")
