"""False facts of a service reach no kernel: each is tried here first, or skipped."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from feinsum import array, einsum, generate_loopy
from feinsum.db import HttpStore
from feinsum.db.address import parse_address
from feinsum.db.remote.answers import Breaker
from feinsum.db.remote.layer import open_remote
from feinsum.memory import use_fresh_memory
from feinsum.records import LookUp, TransformSpec
from feinsum.retrieval import look_up, request, retrieve, search
from feinsum.transforms import REGISTRY
from feinsum.transforms.plugins import VARIABLE
from tests.docs.pages import ROOT
from tests.hostile.poison import PoisonedService, forged
from tests.remote.chaos import answering, chaos, silent
from tests.retrieval.facts import fact
from tests.retrieval.oracle import Oracle
from tests.tune import odd_transforms
from tests.tune.odd_transforms import ODD, odd_einsum, odd_spec

POISON = (
    "odd_double",
    "odd_drop_last",
    "odd_crooked",
    "odd_slow",
    "odd_segfaults",
    "odd_exits",
    "odd_unbuildable",
    "odd_raises",
    "odd_returns_nothing",
)
"""Wrong everywhere, somewhere, beyond some size; slow; and what never ends well."""


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """A user with an empty cache who asks one service, and verifies."""
    for name, value in {
        "FEINSUM_CACHE_DIR": str(tmp_path / "cache"),
        "FEINSUM_DATABASE": str(tmp_path / "own.sqlite"),
        "FEINSUM_LAYERS": "remote",
        "FEINSUM_REMOTE_BUDGET_MS": "60000",
        "PYTHONPATH": str(ROOT),
        VARIABLE: odd_transforms.__name__,
        request.VERIFY_VARIABLE: "on",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(search, "LIMIT_S", 600.0)  # however busy the machine is
    monkeypatch.setattr(search, "BUDGET_S", 3600.0)
    for name, transform in ODD.items():
        monkeypatch.setitem(REGISTRY, (name, 1), transform)
    with use_fresh_memory():
        yield


def poison() -> list:
    """Exact facts of this device and driver, of 1e-30 s, of recipes that harm."""
    names = zip(POISON, count(1), strict=False)
    return [forged(fact(odd_einsum(), odd_spec(n)), k * 1e-30) for n, k in names]


def test_no_poisoned_recipe_is_applied(monkeypatch):
    """Retrieval after retrieval, until all that was sent is tried."""
    kernel = generate_loopy(odd_einsum())
    n_applied, n_rounds = 0, 0
    with chaos(PoisonedService(poison())) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        while True:
            found = look_up(kernel)
            n_rounds += 1
            n_applied += len(found.applied)
            assert n_rounds < 5
            if found.is_settled:
                break
    assert n_applied == 0
    assert found.t_unit is kernel
    assert {spec.name for spec, _ in found.nests[0].failures} == set(POISON)


def test_an_honest_recipe_is_found_behind_the_poison(tmp_path, monkeypatch):
    """It is tried when what promised more has failed, and nothing displaces it."""
    honest = fact(odd_einsum(), odd_spec("odd_right"), speedup=2.0)
    oracle = Oracle(tmp_path, monkeypatch)
    oracle.says(odd_right=(1e-3, 2e-3), odd="wrong-result")
    kernel = generate_loopy(odd_einsum())
    with chaos(PoisonedService([*poison(), honest])) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        applied = [look_up(kernel).applied for _ in range(4)]
    assert applied[-1] == (honest.spec,)
    assert {spec for specs in applied for spec in specs} == {honest.spec}
    assert len(oracle.asked) == len(POISON) + 1


def test_a_trusted_recipe_is_tried_before_the_poison(tmp_path, monkeypatch):
    """However fast the poison says to be: no trial is spent on it."""
    honest = fact(odd_einsum(), odd_spec("odd_right"), speedup=2.0)
    oracle = Oracle(tmp_path, monkeypatch)
    oracle.says(odd_right=(1e-3, 2e-3), odd="wrong-result")
    with chaos(PoisonedService([honest], doubted=poison())) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        found = look_up(generate_loopy(odd_einsum()))
    assert found.applied == (honest.spec,)
    assert len(oracle.asked) == 1


def test_sixty_recipes_that_nobody_has_are_one_line_of_the_log(
    tmp_path, monkeypatch, caplog
):
    """And the genuine one behind them is found."""
    honest = fact(odd_einsum(), odd_spec("odd_right"), speedup=2.0)
    Oracle(tmp_path, monkeypatch).says(odd_right=(1e-3, 2e-3))
    alien = TransformSpec("alien", 1, {"x": "y" * 1000})
    fakes = [
        forged(fact(odd_einsum(), replace(alien, version=k))) for k in range(1, 61)
    ]
    with chaos(PoisonedService([*fakes, honest])) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        assert look_up(generate_loopy(odd_einsum())).applied == (honest.spec,)
    warned = [r for r in caplog.records if r.name.startswith("feinsum")]
    assert len(warned) == 1
    assert len(warned[0].getMessage()) < 1500


def test_an_answer_that_is_too_large_costs_no_other_workload_its_facts(monkeypatch):
    """What came of it counts, the others are answered, and the service is not left
    alone.
    """
    large = [forged(fact(odd_einsum(), odd_spec("odd_right", n))) for n in (4, 8)]
    other = einsum("ij,j->i", array("A", ("N", 5)), array("x", 5))
    small = fact(other, TransformSpec("alien", 1, {}))
    keys = {large[0].workload: "", small.workload: ""}
    with chaos(PoisonedService([*large, small], filler=12 * 2**20)) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        service = open_remote()
        found = service.candidates(LookUp(keys))
        assert set(found[large[0].workload]) & set(large)
        assert found[small.workload] == (small,)
        assert Breaker(parse_address(server.url), None).explain_open() == ""
        assert "more than" in service.note
        n_asked = server.n_connections
        assert open_remote().candidates(LookUp(keys)) == found
        assert server.n_connections == n_asked


def test_a_flood_that_takes_all_the_time_is_no_failure_either(monkeypatch):
    """What has come when time is up is read as far as it goes."""
    (record,) = [fact(odd_einsum(), odd_spec("odd_right"))]
    service = PoisonedService([record], filler=8 * 2**20)

    def slow(server, stream):
        """Sends the first fact and some more at once, and then hangs."""
        stream.sendall(service.answer(server.requests[-1])[: 2**20])
        silent(server, stream)

    monkeypatch.setenv("FEINSUM_REMOTE_BUDGET_MS", "2000")
    with chaos(slow) as server:
        layer = open_remote(server.url)
        assert layer.candidates(LookUp({record.workload: ""})) == {
            record.workload: (record,)
        }
        assert Breaker(parse_address(server.url), None).explain_open() == ""


@pytest.mark.parametrize("is_store", [False, True])
def test_a_failure_of_a_service_is_reported_once(is_store, recwarn):
    """Not once a kernel: for a URL, and for a store."""
    with chaos(answering("500 No", "{}")) as server:
        place = HttpStore.at(server.url) if is_store else server.url
        for extent in (3, 4, 5):
            one = einsum("ij,j->i", array("A", ("N", extent)), array("x", extent))
            kernel = generate_loopy(one)
            assert retrieve(kernel, database=place) is kernel
    assert server.n_connections == 1
    told = [w for w in recwarn if "returned unchanged" in str(w.message)]
    assert len(told) == 1
