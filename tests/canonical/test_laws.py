"""Laws of the canonical form, on random einsums under random isomorphisms."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from constantdict import constantdict
from hypothesis import given
from hypothesis import strategies as st

from feinsum.canonical import (
    Relabeling,
    build_induced_graph,
    canonicalize,
    isomorphism,
)
from feinsum.errors import CanonicalizationError, InvalidEinsumError
from feinsum.ir import (
    BatchedEinsum,
    array,
    batched_einsum,
    einsum,
    evaluate,
    to_text,
)
from tests.strategies import arrays_of, counts, einsums, near_pairs, relabelings


@counts(100, 20_000)
@given(einsums(), st.data())
def test_invariant(e: BatchedEinsum, data: st.DataObject) -> None:
    """Isomorphic einsums have equal canonical einsums, texts and keys."""
    f = data.draw(relabelings(e)).apply(e)
    first, second = canonicalize(e), canonicalize(f)
    assert first.einsum == second.einsum
    assert first.text == second.text
    assert first.key == second.key


@given(einsums())
def test_the_form_of_an_einsum(e: BatchedEinsum) -> None:
    """The relabeling leads to the canonical einsum; its inverse gives the einsum back,
    names, order and all. Canonical names tell the order of first use and nothing else,
    and the canonical einsum is its own form.
    """
    form = canonicalize(e)
    canonical = form.einsum
    assert form.relabeling.apply(e) == canonical
    assert form.relabeling.inverse().apply(canonical) == e
    assert canonicalize(canonical).einsum == canonical
    assert canonical.indices == tuple("abcdef"[: len(e.indices)])
    n_operands, n_params = len(e.operands), len(e.size_params)
    assert [op.name for op in canonical.operands] == [
        f"A{k}" for k in range(n_operands)
    ]
    assert [str(n) for n in canonical.size_params] == [f"N{k}" for k in range(n_params)]


@given(einsums(), st.data())
def test_relabelings_are_a_group(e: BatchedEinsum, data: st.DataObject) -> None:
    """``then`` is one after the other, however it is grouped; an inverse undoes, and
    that of two in a row is that of the inverses, the last one first. A relabeling and
    then its inverse changes no name and no place.
    """
    chain, images = [], [e]
    for _ in range(3):
        chain.append(data.draw(relabelings(images[-1])))
        images.append(chain[-1].apply(images[-1]))
    first, second, third = chain
    assert first.then(second).apply(e) == images[2]
    assert first.then(second).then(third) == first.then(second.then(third))
    inverse = first.inverse()
    assert inverse.apply(images[1]) == e
    assert inverse.inverse() == first
    assert first.then(second).inverse() == second.inverse().then(inverse)
    nothing = first.then(inverse)
    assert all(old == new for old, new in nothing.indices.items())
    assert all(old == new for old, new in nothing.operands.items())
    assert nothing.rows == tuple(range(e.batch_size))
    assert set(nothing.positions) == {tuple(range(e.n_operands))}


@pytest.mark.parametrize(
    ("f", "what"),
    [
        (einsum("pq,q->p", array("A", (3, 4)), array("x", 4)), "indices"),
        (einsum("ij,j->i", array("B", (3, 4)), array("x", 4)), "operands"),
        (einsum("ij,j->i", array("A", ("n", 4)), array("x", 4)), "size_params"),
        (batched_einsum("ij,j->i", [[array("A", (3, 4)), array("x", 4)]] * 2), "rows"),
    ],
    ids=["indices", "operands", "size parameters", "rows"],
)
def test_then_is_refused_where_relabelings_do_not_meet(
    f: BatchedEinsum, what: str
) -> None:
    """The second must begin with the names and rows that the first leads to."""
    e = einsum("ij,j->i", array("A", (3, 4)), array("x", 4))
    first = canonicalize(e).relabeling.then(canonicalize(e).relabeling.inverse())
    with pytest.raises(InvalidEinsumError, match=f"the {what} .* do not fit"):
        first.then(canonicalize(f).relabeling)


@given(near_pairs(n_indices=3, n_terms=2, n_rows=2))
def test_isomorphism_exactly_if_one_key(
    pair: tuple[BatchedEinsum, BatchedEinsum],
) -> None:
    """There is a bijection exactly between einsums of one key, and it leads over."""
    e, f = pair
    bijection = isomorphism(e, f)
    assert (bijection is not None) == (canonicalize(e).key == canonicalize(f).key)
    assert bijection is None or bijection.apply(e) == f


@given(einsums(n_indices=4), st.data())
def test_relabeled_einsum_computes_the_same(
    e: BatchedEinsum, data: st.DataObject
) -> None:
    """A relabeled einsum has the old results, in the relabeled order of rows."""
    relabeling = data.draw(relabelings(e) | st.just(canonicalize(e).relabeling))
    arrays = arrays_of(e)
    renamed = {relabeling.operands[name]: value for name, value in arrays.items()}
    old, new = evaluate(e, arrays), evaluate(relabeling.apply(e), renamed)
    for k, result in zip(relabeling.rows, new, strict=True):
        np.testing.assert_array_equal(result, old[k])


@pytest.mark.parametrize("what", ["indices", "operands", "size_params"])
def test_relabeling_is_a_bijection(what: str) -> None:
    """A relabeling that gives two things one name is refused, naming both."""
    names = {
        "indices": {},
        "operands": {},
        "size_params": {},
        what: {"p": "x", "q": "x"},
    }
    wanted = f"{what} is not a bijection.*'p'.*'q'"
    with pytest.raises(InvalidEinsumError, match=wanted):
        Relabeling(
            **{k: constantdict(v) for k, v in names.items()}, rows=(), positions=()
        )


@pytest.mark.parametrize(
    ("rows", "positions"),
    [((0, 0), ((0,), (0,))), ((0,), ((0, 0),)), ((1,), ((0, 1),)), ((0,), ((1, 2),))],
)
def test_relabeling_is_of_permutations(
    rows: tuple[int, ...], positions: tuple[tuple[int, ...], ...]
) -> None:
    """A relabeling that takes a row or an operand twice, or none, is refused."""
    none = constantdict()
    with pytest.raises(InvalidEinsumError, match="not a bijection"):
        Relabeling(none, none, none, rows, positions)


SWAP = constantdict({"i": "i", "j": "j"})
NAMES = constantdict({"A": "A", "x": "x"})


@pytest.mark.parametrize(
    "relabeling",
    [
        Relabeling(constantdict(i="i"), NAMES, constantdict(), (0, 1), ((0, 1),) * 2),
        Relabeling(SWAP, constantdict(), constantdict(), (0, 1), ((0, 1),) * 2),
        Relabeling(SWAP, NAMES, constantdict(), (0,), ((0, 1),)),
        Relabeling(SWAP, NAMES, constantdict(), (0, 1, 2), ((0, 1),) * 3),
        Relabeling(SWAP, NAMES, constantdict(), (0, 1), ((0,),) * 2),
        Relabeling(SWAP, NAMES, constantdict(), (0, 1), ((0, 1), (1, 0))),
    ],
    ids=["index", "operand", "rows", "more rows", "positions", "terms of two rows"],
)
def test_relabeling_of_another_einsum_is_refused(relabeling: Relabeling) -> None:
    """It is applied to what it fits, or not at all; and never gives another einsum."""
    A, x = array("A", (4, 4)), array("x", 4)
    e = batched_einsum("ij,j->i", [[A, x], [A, x]])
    with pytest.raises(InvalidEinsumError, match="do not fit"):
        relabeling.apply(e)


def test_a_form_cannot_be_changed() -> None:
    """What is kept for the next caller is immutable, and can be a key itself."""
    form = canonicalize(einsum("ij,j->i", array("A", (3, 4)), array("x", 4)))
    assert hash(form) == hash(canonicalize(form.source))
    assert all(isinstance(part, tuple) for part in form.order)
    assert all(isinstance(row, tuple) for row in form.order.positions)


def test_an_equal_einsum_has_the_kept_form() -> None:
    """Canonicalizing an equal einsum again gives the very same form."""
    first = canonicalize(einsum("ij,j->i", array("A", (3, 7)), array("x", 7)))
    again = canonicalize(einsum("ij,j->i", array("A", (3, 7)), array("x", 7)))
    assert first is again


def test_an_error_names_the_einsum() -> None:
    """A search without end is stopped, and the user is told of which einsum."""
    names = [f"trace{k}" for k in range(30)]
    terms = ",".join(f"{{{a}}}{{{b}}}" for a, b in pairwise([*names, names[0]]))
    e = einsum(f"{terms} -> ", *(array(f"Wheel{k}", ("N", "N")) for k in range(30)))
    with pytest.raises(CanonicalizationError, match=r"einsum {trace0}.*was stopped"):
        canonicalize(e, time_limit_s=0.001)
    assert isomorphism(e, einsum("i->", array("x", "N"))) is None


def test_key_carries_its_versions() -> None:
    """A key names the version of the form and of the canonicalizer, and a digest."""
    form = canonicalize(einsum("ij,j->i", array("A", (3, 4)), array("x", 4)))
    version, canonicalizer, digest = form.key.split("-")
    assert (version, canonicalizer) == ("fe2", "nauty2.8")
    assert len(digest) == 40
    assert form.text == to_text(form.einsum)


def test_more_indices_than_letters() -> None:
    """A chain of 40 matrices is canonicalized, whatever its indices are called."""

    def chain(names: list[str]) -> BatchedEinsum:
        terms = ",".join(f"{{{a}}}{{{b}}}" for a, b in pairwise(names))
        operands = [array(f"M{k}", (2, 2)) for k in range(40)]
        return einsum(f"{terms}->{{{names[0]}}}{{{names[-1]}}}", *operands)

    first = chain([f"left{k}" for k in range(41)])
    second = chain([f"right{k}" for k in reversed(range(41))])
    assert canonicalize(first).einsum.indices == tuple(f"i{k}" for k in range(41))
    assert canonicalize(first).key == canonicalize(second).key


@given(einsums())
def test_edges_are_simple(e: BatchedEinsum) -> None:
    """No vertex is its own neighbour, and no edge is there twice: nauty sees all."""
    edges = [frozenset(edge) for edge in build_induced_graph(e).edges]
    assert all(len(edge) == 2 for edge in edges)
    assert len(set(edges)) == len(edges)


@pytest.mark.parametrize("value", ["ij,jk->ik", None, 3])
def test_what_is_no_einsum_is_refused(value):
    """Text or nothing in the place of an einsum is named, with what to do."""
    with pytest.raises(InvalidEinsumError, match=r"feinsum\.einsum"):
        canonicalize(value)
