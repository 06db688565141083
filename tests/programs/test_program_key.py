"""Keys of programs: names and orders do not count, what is computed does."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from feinsum.canonical import canonicalize
from feinsum.ir import array, einsum
from feinsum.programs import (
    canonical_program,
    evaluate_program,
    multi_head_attention,
    program,
    program_from_text,
    program_key,
)
from tests.portions import spread
from tests.programs.random_programs import disguised, random_program


@pytest.mark.parametrize("seed", spread(range(60), 15))
def test_a_program_in_disguise_has_its_key(seed):
    source = random.Random(seed)
    given = random_program(source, 1 + seed % 7)
    other, _ = disguised(given, source)
    assert program_key(other) == program_key(given)
    assert canonical_program(other) == canonical_program(given)


@pytest.mark.parametrize("seed", spread(range(20), 5))
def test_the_canonical_program_computes_the_same(seed):
    """And is its own canonical program."""
    source = random.Random(seed)
    given = random_program(source, 1 + seed % 5)
    canonical = canonical_program(given)
    assert canonical_program(canonical) == canonical
    assert len(canonical.outputs) == len(given.outputs)
    arrays = {x.name: np.ones(x.shape) for x in given.inputs}
    ones = {x.name: np.ones(x.shape) for x in canonical.inputs}
    found = sorted(r.sum() for r in evaluate_program(canonical, ones).values())
    right = sorted(r.sum() for r in evaluate_program(given, arrays).values())
    np.testing.assert_allclose(found, right)


BASE = """
X[4,4]:<f8
Y[4,4]:<f8
S[i,j] = sum x0*x1 : X[i,k], Y[k,j]
D[i,j] = map x0 - x1 : S[i,j], X[i,j]
-> D
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("S[i,j], X[i,j]", "X[i,j], S[i,j]"),  # x - c is not c - x
        ("x0 - x1 : S[i,j], X[i,j]", "x0 - x1 : S[i,j], Y[i,j]"),
        ("x0 - x1", "x0 + x1"),
        ("S[i,j], X[i,j]", "S[i,j], X[j,i]"),
        ("S[i,j], X[i,j]", "S[j,i], X[i,j]"),
        ("= sum", "= max"),
        ("-> D", "-> D, S"),
        ("X[4,4]", "X[4,4]:<f8\nZ[4,4]"),
        ("X[4,4]:<f8\nY[4,4]:<f8", "X[4,4]:<f4\nY[4,4]:<f8"),
        ("X[4,4]:<f8\nY[4,4]:<f8", "X[5,5]:<f8\nY[5,5]:<f8"),
        ("X[4,4]:<f8\nY[4,4]:<f8", "X[n,n]:<f8\nY[n,n]:<f8"),
        ("x0 - x1", "x0 - x1 if i > j else x0"),
        ("x0*x1", "0.5*x0*x1"),
    ],
)
def test_another_program_has_another_key(old, new):
    given, other = (program_from_text(t) for t in (BASE, BASE.replace(old, new)))
    assert program_key(given) != program_key(other)


def test_an_index_in_a_body_has_no_name():
    body = "x0 if i > j else x1"
    one = BASE.replace("x0 - x1", body)
    same = one.replace("D[i,j] = map", "D[p,q] = map").replace(
        f"{body} : S[i,j], X[i,j]", "x0 if p > q else x1 : S[p,q], X[p,q]"
    )
    turned = one.replace("i > j", "j > i")
    assert program_key(program_from_text(one)) == program_key(program_from_text(same))
    assert program_key(program_from_text(one)) != program_key(program_from_text(turned))


def test_a_program_of_one_einsum_has_the_key_of_its_workload():
    """Also where an operand is read twice; not if more is given or computed."""
    A = array("A", (3, 3))
    p = program()
    p.einsum("ij,jk->ik", A, A)
    key = canonicalize(einsum("ij,jk->ik", A, A)).key
    assert program_key(p.build()) == key
    unread = replace(p.build(), inputs=(*p.build().inputs, array("B", 3)))
    assert program_key(unread).startswith("fp1-")
    p.map("exp(x0)", A)
    assert program_key(p.build()).startswith("fp1-")


def test_many_interchangeable_statements_have_one_key():
    """Twelve layers, each with two statements that can be exchanged."""
    p = program()
    X = p.input("X", (16, 8))
    for k in range(12):
        W = p.input(f"W{k}", (8, 8))
        left, right = (p.einsum("sa,ab->sb", X, W) for _ in range(2))
        X = p.map("x0 + x1", left, right)
    source = random.Random(0)
    other, _ = disguised(p.build(), source)
    assert program_key(other) == program_key(p.build())


GOLDEN = {
    "softmax": "fp1-nauty2.8-69f9a147665c8200c93c8962fb3f06460e933f9f",
    "attention": "fp1-nauty2.8-e0dba6b30fd1d2107a3976a4a5235d61876bd8e5",
}


def test_golden_keys_stay():
    """Databases hold them."""
    p = program()
    p.softmax(array("X", (4, 8)))
    q = program()
    multi_head_attention(q, q.input("X", ("s", 8)), heads=2, entries=4)
    assert [program_key(x.build()) for x in (p, q)] == [*GOLDEN.values()]
