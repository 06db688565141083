"""Search strategies: every configuration once, in an order that a seed fixes."""

from __future__ import annotations

from typing import get_args

import pytest

from feinsum import array, canonicalize, einsum
from feinsum.errors import FeinsumError
from feinsum.transforms import find_applicable_transforms, list_configurations
from feinsum.tuning import Strategy, make_search

GEMM = canonicalize(
    einsum("ik,kj->ij", array("A", (40, 30)), array("B", (30, 600)))
).einsum
GRADIENT = canonicalize(
    einsum(
        "xre,rij,ej->xei",
        array("J", (3, 3, "N")),
        array("D", (3, 10, 10)),
        array("u", ("N", 10)),
    )
).einsum
SCALED = canonicalize(einsum("e,ej->ej", array("J", "N"), array("u", ("N", 10)))).einsum
MATVEC = canonicalize(einsum("ij,j->i", array("A", ("N", 4)), array("x", 4))).einsum


def seconds(spec) -> float:
    """A made-up time of a configuration; some fail."""
    digits = sum(map(ord, str(spec)))
    return float("inf") if digits % 5 == 0 else digits * 1e-6


def proposals(strategy, einsum, seed=0, limit=None):
    """What a search proposes, until it has nothing left or there are enough."""
    search = make_search(strategy, einsum, find_applicable_transforms(einsum), seed)
    found = []
    while len(found) != limit and (spec := search.ask()) is not None:
        search.tell(spec, seconds(spec))
        found.append(spec)
    return found


def space(einsum):
    families = find_applicable_transforms(einsum)
    return {t.name: list(list_configurations(t, einsum)) for t in families}


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_each_configuration_is_proposed_exactly_once(strategy):
    """A search that goes on to the end proposes the whole space, nothing twice; and
    says beforehand how large that is.
    """
    everything = [spec for specs in space(SCALED).values() for spec in specs]
    found = proposals(strategy, SCALED)
    assert len(found) == len(set(found))
    assert set(found) == set(everything)
    search = make_search(strategy, SCALED, find_applicable_transforms(SCALED), 0)
    assert search.n_configurations == len(everything)
    search.ask()
    assert search.n_configurations == len(everything)


def test_exhaustive_takes_the_families_in_turn():
    """One configuration of each family after another, in the order of its space."""
    proposed = proposals("exhaustive", GRADIENT)
    families = space(GRADIENT)
    for name, ordered in families.items():
        assert [spec for spec in proposed if spec.name == name] == ordered
    assert len({spec.name for spec in proposed[: len(families)]}) == len(families)


@pytest.mark.parametrize("strategy", ["random", "tpe"])
def test_a_seed_fixes_the_order(strategy):
    """Equal seeds propose equal sequences; other seeds other ones."""
    first, again, other = (
        proposals(strategy, GRADIENT, seed, limit=25) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert first != proposals("exhaustive", GRADIENT, limit=25)


def test_tpe_begins_with_the_first_of_each_family():
    """The recommended configuration of every family comes before all others; none is
    tried twice, however large the space is.
    """
    families = space(GEMM)
    assert len(families) >= 2
    assert sum(map(len, families.values())) > 300
    found = proposals("tpe", GEMM, limit=25)
    assert found[: len(families)] == [specs[0] for specs in families.values()]
    assert len(set(found)) == 25


def test_tpe_goes_on_with_one_change_of_the_best_at_a_time():
    """Each parameter of the best recommended configuration is changed once, alone."""
    families = space(GRADIENT)
    search = make_search("tpe", GRADIENT, find_applicable_transforms(GRADIENT), 0)
    for _ in families:
        spec = search.ask()
        search.tell(spec, 0.1 if spec.name == "packed_contraction" else 1.0)
    best = families["packed_contraction"][0].parameters
    changed = []
    for _ in range(5):
        spec = search.ask()
        assert spec.name == "packed_contraction"
        changed += [n for n, value in spec.parameters.items() if best[n] != value]
        search.tell(spec, 0.5)
    assert len(changed) == len(set(changed)) == 5


def n_changed(first, second) -> int:
    """In how many parameters two recipes of a family differ."""
    return sum(first.parameters[n] != value for n, value in second.parameters.items())


def test_tpe_puts_together_what_is_good():
    """After the changes of one parameter comes the recipe with all that were faster,
    then every other one is close to the best so far.
    """
    families = space(GRADIENT)
    first = families["packed_contraction"][0]
    good = {"depth", "inside"}

    def cost(spec):
        if spec.name != "packed_contraction":
            return 10.0
        better = (n for n in good if spec.parameters[n] != first.parameters[n])
        return 1.0 - 0.1 * len(list(better))

    search = make_search("tpe", GRADIENT, find_applicable_transforms(GRADIENT), 0)
    found = []
    while not found or n_changed(first, found[-1]) < 2:
        spec = search.ask()
        search.tell(spec, cost(spec))
        found += [spec] if spec.name == "packed_contraction" else []
    best = found[-1]
    assert {n for n in good if best.parameters[n] != first.parameters[n]} == good
    assert n_changed(first, best) == 2
    after = []
    for _ in range(8):
        after.append(search.ask())
        search.tell(after[-1], 20.0)
    near = [s for s in after if s.name == best.name and n_changed(best, s) == 1]
    assert len(near) >= 4


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_what_is_asked_for_comes_first(strategy):
    """Recipes that are given come before all others, once; those of others do not."""
    specs = [spec for found in space(SCALED).values() for spec in found]
    wanted = [specs[7], specs[-1], specs[7]]
    stranger = next(iter(space(GEMM)["packed_contraction"]))
    search = make_search(strategy, SCALED, find_applicable_transforms(SCALED), 0)
    search.prefer([stranger, *wanted])
    found = [search.ask() for _ in range(6)]
    assert found[:2] == wanted[:2]
    assert len(set(found)) == 6
    assert stranger not in found
    assert search.n_configurations == len(specs)


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_what_is_learnt_is_never_proposed(strategy):
    """What is known counts as proposed; what is not in the space is not learnt."""
    specs = [spec for found in space(MATVEC).values() for spec in found]
    search = make_search(strategy, MATVEC, find_applicable_transforms(MATVEC), 0)
    stranger = next(iter(space(GEMM)["packed_contraction"]))
    known = specs[::2]
    assert all(search.learn(spec, seconds(spec)) for spec in known)
    assert not search.learn(known[0], 1.0)
    assert not search.learn(stranger, 1.0)
    search.prefer(known)
    found = list(iter(search.ask, None))
    assert sorted(map(str, found)) == sorted(map(str, set(specs) - set(known)))


def test_tpe_learns_from_what_is_known():
    """Costs that are told beforehand lead it as much as those of its own trials."""

    def n_good(is_taught):
        search = make_search("tpe", GRADIENT, find_applicable_transforms(GRADIENT), 0)
        everything = [s for specs in space(GRADIENT).values() for s in specs]
        for spec in everything[:: len(everything) // 40] if is_taught else ():
            search.learn(spec, 1e-3 if spec.parameters.get("vectors") == 64 else 1.0)
        asked = [search.ask() for _ in range(12)]
        return sum(spec.parameters.get("vectors") == 64 for spec in asked)

    assert n_good(is_taught=True) > n_good(is_taught=False)


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_several_proposals_may_be_under_way(strategy):
    """Answers come in any order, or not at all; every configuration is still proposed
    once.
    """
    search = make_search(strategy, MATVEC, find_applicable_transforms(MATVEC), 0)
    found, pending = [], []
    while True:
        while len(pending) < 3 and (spec := search.ask()) is not None:
            pending.append(spec)
            found.append(spec)
        if not pending:
            break
        answered = pending.pop()
        if len(found) % 2:
            search.tell(answered, seconds(answered))
    assert len(found) == len(set(found)) == search.n_configurations


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_nothing_fits_nothing_is_proposed(strategy):
    """A search over no transforms has nothing to propose."""
    search = make_search(strategy, MATVEC, (), 0)
    assert (search.ask(), search.n_configurations) == (None, 0)


def test_an_unknown_strategy_is_refused():
    """The message names the strategies."""
    with pytest.raises(FeinsumError, match=r"'genetic'.*tpe.*random.*exhaustive"):
        make_search("genetic", MATVEC, find_applicable_transforms(MATVEC), 0)
