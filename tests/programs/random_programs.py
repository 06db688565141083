"""Random programs, and the same ones under other names and in other orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from feinsum.ir import Operand, array
from feinsum.ir.expressions import list_names, normalize_body
from feinsum.programs import Program, Statement, evaluate_program, run_program

BODIES = {
    1: ("", "exp(x0)", "x0*x0"),
    2: ("", "x0 - x1", "max(x0, x1)", "x0 / (1 + x1*x1)"),
}
REDUCTIONS = ("sum", "max", "min", "a + b + a*b")
EXTENTS = (2, 4, 8)


def random_program(
    source: random.Random, n_statements: int, *, is_tree: bool = False
) -> Program:
    """Matrices in, matrices and vectors out; all that nothing reads is wanted."""
    extents = {name: source.choice(EXTENTS) for name in "ijkl"}
    inputs: list[Operand] = []
    terms: dict[str, str] = {}

    def given() -> str:
        name = f"in{len(inputs)}"
        term = "".join(source.sample("ijkl", 2))
        inputs.append(array(name, tuple(extents[i] for i in term)))
        terms[name] = term
        return name

    statements: list[Statement] = []
    for k in range(n_statements):
        free = [s.result for s in statements]
        if is_tree:
            read = {name for s in statements for name in s.operands}
            free = [name for name in free if name not in read]
        n = source.choice([1, 2, 2])
        operands: list[str] = []
        for _ in range(n):
            others = [name for name in free if not is_tree or name not in operands]
            operands.append(
                source.choice(others) if others and source.random() < 0.7 else given()
            )
        known = sorted({i for name in operands for i in terms[name]})
        output = "".join(
            source.sample(known, source.randint(min(1, len(known)), min(2, len(known))))
        )
        result = f"out{k}"
        terms[result] = output
        statements.append(
            Statement(
                result,
                tuple(output),
                tuple(tuple(terms[name]) for name in operands),
                tuple(operands),
                source.choice(BODIES[n]),
                source.choice(REDUCTIONS),
            )
        )
    read = {name for s in statements for name in s.operands}
    return Program(
        tuple(inputs),
        tuple(statements),
        tuple(s.result for s in statements if s.result not in read),
    )


def numbers(given: Program, seed: int = 0, **sizes: int) -> dict[str, np.ndarray]:
    """Random inputs of a program, at values of its size parameters."""
    source = np.random.default_rng(seed)
    return {
        x.name: source.uniform(-1, 1, [sizes.get(str(n), n) for n in x.shape])
        for x in given.inputs
    }


def assert_right(
    given: Program,
    arrays: Mapping[str, Any] | None = None,
    run: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    **sizes: int,
) -> None:
    """The program computes what the reference does, by default of random inputs, and
    on this node.
    """
    arrays = numbers(given, **sizes) if arrays is None else arrays
    found = run_program(given, arrays) if run is None else run(arrays)
    for name, right in evaluate_program(given, arrays).items():
        assert found[name].dtype == right.dtype
        np.testing.assert_allclose(found[name], right, rtol=1e-10, atol=1e-10)


def disguised(
    program: Program, source: random.Random
) -> tuple[Program, dict[str, str]]:
    """Other names, another order of dataflow, other orders of factors and outputs."""
    numbers = source.sample(range(1000), len(program.arrays))
    names = {name: f"z{k}" for name, k in zip(program.arrays, numbers, strict=True)}
    inputs = [replace(x, name=names[x.name]) for x in program.inputs]
    source.shuffle(inputs)
    left, statements = {s.result: s for s in program.statements}, []
    while left:
        ready = [
            s for s in left.values() if not any(name in left for name in s.operands)
        ]
        statements.append(
            _renamed(left.pop(source.choice(ready).result), names, source)
        )
    outputs = [names[name] for name in program.outputs]
    source.shuffle(outputs)
    return Program(tuple(inputs), tuple(statements), tuple(outputs)), names


def _renamed(one: Statement, names: dict[str, str], source: random.Random) -> Statement:
    letters = dict(
        zip(one.indices, source.sample("pqrstuvw", len(one.indices)), strict=True)
    )
    order = [*range(len(one.operands))]
    if one.is_product:
        source.shuffle(order)
    body = normalize_body(
        one.body, {i: letters[i] for i in list_names(one.body) if i in letters}
    )
    return Statement(
        names[one.result],
        tuple(letters[i] for i in one.output),
        tuple(tuple(letters[i] for i in one.inputs[p]) for p in order),
        tuple(names[one.operands[p]] for p in order),
        body,
        one.reduction,
    )
