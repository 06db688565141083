"""The key of a program: equal for programs that compute the same, under any names.

The induced graph of a program extends that of an einsum
(:mod:`feinsum.canonical.graph`):

===========  ==================================  =======================================
vertex       color                               neighbours
===========  ==================================  =======================================
statement    reduction and body; whether wanted  its indices; its uses; its result
index        place in the result, place in the   its size parameter; the axes that carry
             body, extent                        it
size-param   --                                  the indices that have it as extent
use          position, if the body is none that  its statement; its first axis; the
             multiplies all operands             array
axis         place in its term                   its index, if any; the next axis
array        dtype; whether it is given          its uses
===========  ==================================  =======================================

Operands are colored by position if the body is not a product: ``x - c`` is not
``c - x``. Bodies refer to operands and indices by position, so names do not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NewType

from feinsum.canonical import CANONICALIZER, canonical_places, canonicalize
from feinsum.errors import CanonicalizationError
from feinsum.ir import BatchedEinsum, Extent, SizeParam
from feinsum.ir.evaluate import einsum_of
from feinsum.ir.expressions import names_in, normal_body, product_of
from feinsum.ir.program import Program
from feinsum.ir.statement import Statement
from feinsum.words import counted

PROGRAM_FORM_VERSION = "fp1"
"""Version of the canonical form of programs; part of every key."""

ProgramKey = NewType("ProgramKey", str)
"""Names a class of isomorphic programs; of one einsum it is the workload's key."""

Color = tuple[str, int, int, int, str]


@dataclass
class _Graph:
    """Colors and edges, and the meaning of each vertex."""

    colors: list[Color] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    arrays: dict[str, int] = field(default_factory=dict)
    params: dict[SizeParam, int] = field(default_factory=dict)
    statements: dict[str, int] = field(default_factory=dict)
    indices: dict[tuple[str, str], int] = field(default_factory=dict)
    uses: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, kind: str, a: int = 0, b: int = 0, c: int = 0, text: str = "") -> int:
        self.colors.append((kind, a, b, c, text))
        return len(self.colors) - 1


def program_key(program: Program) -> ProgramKey:
    """The key of a program.

    Programs that differ only in names, in the order of statements or outputs, or in the
    order of the operands of products have the same key; all others have different keys.

    Raises:
        CanonicalizationError: if that takes too long.

    >>> from feinsum.ir import array, einsum
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> _ = p.einsum("ij,jk->ik", array("A", (2, 3)), array("B", (3, 4)))
    >>> alone = einsum("zw,Yz->Yw", array("x", (3, 4)), array("y", (2, 3)))
    >>> program_key(p.build()) == canonicalize(alone).key
    True
    """
    if (alone := as_einsum(program)) is not None:
        return ProgramKey(canonicalize(alone).key)
    text = str(canonical_program(program))
    digest = hashlib.sha256(text.encode()).hexdigest()[:40]
    return ProgramKey(f"{PROGRAM_FORM_VERSION}-{CANONICALIZER}-{digest}")


def as_einsum(program: Program) -> BatchedEinsum | None:
    """The einsum that a program consists of; None if it is more than that."""
    if len(program.statements) > 1:
        return None
    (one,) = program.statements
    arrays = [program.arrays[name] for name in one.operands]
    has_unread = len(set(one.operands)) < len(program.inputs)
    if not one.is_einsum or one.factor != 1 or has_unread:
        return None
    shapes, dtypes = [a.shape for a in arrays], [a.dtype for a in arrays]
    return einsum_of(one, shapes, dtypes, one.operands)


@lru_cache(maxsize=256)
def canonical_program(program: Program) -> Program:
    """The program with canonical names, in a canonical order.

    Raises:
        CanonicalizationError: if that takes too long.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> _ = p.softmax(array("scores", (2, 3)), name="weights")
    >>> print(canonical_program(p.build()))
    A0[2,3]:<f8
    R0[a] = max x0 : A0[a,b]
    R1[a,b] = map exp(x0 - x1) : A0[a,b], R0[a]
    R2[a] = sum x0 : R1[a,b]
    R3[a,b] = map x0 / x1 : R1[a,b], R2[a]
    -> R3
    """
    graph = _graph_of(program)
    try:
        places = canonical_places(graph.colors, graph.edges)
    except CanonicalizationError as error:
        n = len(program.statements)
        raise CanonicalizationError(
            f"a program of {counted(n, 'statement')} cannot be canonicalized: {error}"
        ) from None
    return _Renaming(program, graph, places).program()


def _graph_of(program: Program) -> _Graph:
    graph = _Graph()
    given = {operand.name for operand in program.inputs}
    for name, operand in program.arrays.items():
        vertex = graph.add("array", name in given, text=operand.dtype.str)
        graph.arrays[name] = vertex
        if name in given:
            _add_shape(graph, vertex, operand.shape)
    for one in program.statements:
        _add_statement(graph, program, one)
    return graph


def _add_shape(graph: _Graph, vertex: int, shape: tuple[Extent, ...]) -> None:
    """Extents of an input that nothing may read."""
    for place, extent in enumerate(shape):
        known = extent if isinstance(extent, int) else -1
        axis = graph.add("extent", place, known)
        graph.edges.append((vertex, axis))
        if isinstance(extent, SizeParam):
            graph.edges.append((axis, _param(graph, extent)))


def _param(graph: _Graph, extent: SizeParam) -> int:
    if extent not in graph.params:
        graph.params[extent] = graph.add("size-param")
    return graph.params[extent]


def _add_statement(graph: _Graph, program: Program, one: Statement) -> None:
    body, places = _positional(one)
    wanted = one.result in program.outputs
    vertex = graph.add("statement", wanted, text=f"{one.reduction}\0{body}")
    graph.statements[one.result] = vertex
    graph.edges.append((vertex, graph.arrays[one.result]))
    for index, extent in program.extents(one).items():
        place = one.output.index(index) if index in one.output else -1
        known = extent if isinstance(extent, int) else -1
        found = graph.add("index", place, places.get(index, -1), known)
        graph.indices[one.result, index] = found
        graph.edges.append((vertex, found))
        if isinstance(extent, SizeParam):
            graph.edges.append((found, _param(graph, extent)))
    for position in range(len(one.operands)):
        _add_use(graph, one, position, vertex)


def _add_use(graph: _Graph, one: Statement, position: int, statement: int) -> None:
    use = graph.add("use", -1 if one.is_product else position)
    graph.uses[one.result, position] = use
    graph.edges += [(use, statement), (use, graph.arrays[one.operands[position]])]
    axes = []
    for place, index in enumerate(one.inputs[position]):
        axes.append(graph.add("axis", place))
        graph.edges.append((axes[-1], graph.indices[one.result, index]))
    graph.edges += pairwise([use, *axes])


def _positional(one: Statement) -> tuple[str, Mapping[str, int]]:
    """The body without names of indices, and the number that each of these got."""
    if one.factor is not None:
        product = product_of(len(one.operands))
        return (product if one.factor == 1 else f"{one.factor!r}*{product}"), {}
    used = [name for name in names_in(one.body) if name in one.indices]
    places = {index: k for k, index in enumerate(used)}
    return normal_body(one.body, {i: f"_{k}" for i, k in places.items()}), places


class _Renaming:
    """Writes a program by the places of its vertices."""

    def __init__(self, program: Program, graph: _Graph, places: list[int]) -> None:
        self.given, self.graph, self.places = program, graph, places
        self.order = self._statements()
        inputs = sorted(
            (operand.name for operand in program.inputs), key=self._place_of_array
        )
        self.names = {name: f"A{k}" for k, name in enumerate(inputs)}
        self.names |= {one.result: f"R{k}" for k, one in enumerate(self.order)}
        self.inputs = inputs

    def program(self) -> Program:
        params = sorted(self.graph.params, key=lambda x: self._at(self.graph.params[x]))
        extents = {param: SizeParam(f"N{k}") for k, param in enumerate(params)}
        arrays = self.given.arrays
        inputs = []
        for name in self.inputs:
            operand = arrays[name]
            shape = tuple(
                extents[x] if isinstance(x, SizeParam) else x for x in operand.shape
            )
            inputs.append(type(operand)(self.names[name], shape, operand.dtype))
        outputs = sorted((self.names[n] for n in self.given.outputs), key=_number)
        statements = [self._statement(one) for one in self.order]
        return Program(tuple(inputs), tuple(statements), tuple(outputs))

    def _at(self, vertex: int) -> int:
        return self.places[vertex]

    def _place_of_array(self, name: str) -> int:
        return self._at(self.graph.arrays[name])

    def _statements(self) -> list[Statement]:
        """Each behind those that it reads; of those that may come next, the first."""
        left = {one.result: one for one in self.given.statements}
        found: list[Statement] = []
        while left:
            free = [
                one
                for one in left.values()
                if not any(name in left for name in one.operands)
            ]
            first = min(free, key=lambda x: self._at(self.graph.statements[x.result]))
            found.append(left.pop(first.result))
        return found

    def _statement(self, one: Statement) -> Statement:
        uses = [
            self._at(self.graph.uses[one.result, p]) for p in range(len(one.operands))
        ]
        order = [*range(len(uses))]
        if one.is_product:
            order.sort(key=lambda p: uses[p])
        letters = self._letters(one)
        body, places = _positional(one)
        by_number = {f"_{k}": letters[index] for index, k in places.items()}
        return Statement(
            self.names[one.result],
            tuple(letters[index] for index in one.output),
            tuple(tuple(letters[i] for i in one.inputs[p]) for p in order),
            tuple(self.names[one.operands[p]] for p in order),
            normal_body(body, by_number),
            one.reduction,
        )

    def _letters(self, one: Statement) -> Mapping[str, str]:
        """Names of indices: those of the result first, then by their places."""
        others = sorted(
            one.reduced_indices,
            key=lambda index: self._at(self.graph.indices[one.result, index]),
        )
        return {index: _letter(k) for k, index in enumerate([*one.output, *others])}


def _letter(k: int) -> str:
    return chr(ord("a") + k) if k < 26 else f"i{k}"


def _number(name: str) -> int:
    return int(name[1:])
