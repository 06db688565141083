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
from string import ascii_lowercase
from typing import NewType

from feinsum.canonical import CANONICALIZER, canonicalize, compute_places
from feinsum.errors import CanonicalizationError
from feinsum.ir import BatchedEinsum, Extent, SizeParam
from feinsum.ir.evaluation import convert_to_einsum
from feinsum.ir.expressions import list_names, normalize_body, write_product
from feinsum.ir.program import Program
from feinsum.ir.statement import Statement
from feinsum.words import format_count

PROGRAM_FORM_VERSION = "fp1"
"""Version of the canonical form of programs; part of every key."""

ProgramKey = NewType("ProgramKey", str)
"""The name of a class of isomorphic programs; for one einsum, the workload's key."""

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
    """Return the key of a program.

    Programs that differ only in names, in the order of statements or outputs, or in the
    order of the operands of products have the same key; all others have different keys.

    Raises:
        CanonicalizationError: if the search takes too long.

    >>> from feinsum.ir import array, einsum
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> _ = p.einsum("ij,jk->ik", array("A", (2, 3)), array("B", (3, 4)))
    >>> alone = einsum("zw,Yz->Yw", array("x", (3, 4)), array("y", (2, 3)))
    >>> program_key(p.build()) == canonicalize(alone).key
    True
    """
    # a program of one einsum has that einsum's records
    if (single_einsum := as_einsum(program)) is not None:
        return ProgramKey(canonicalize(single_einsum).key)
    text = str(canonical_program(program))
    digest = hashlib.sha256(text.encode()).hexdigest()[:40]
    return ProgramKey(f"{PROGRAM_FORM_VERSION}-{CANONICALIZER}-{digest}")


def as_einsum(program: Program) -> BatchedEinsum | None:
    """Return the einsum that a program consists of; None for other programs."""
    if len(program.statements) > 1:
        return None
    (statement,) = program.statements
    arrays = [program.arrays[name] for name in statement.operands]
    # an einsum has no operands that are not read
    has_unread = len(set(statement.operands)) < len(program.inputs)
    if not statement.is_einsum or statement.factor != 1 or has_unread:
        return None
    shapes, dtypes = [a.shape for a in arrays], [a.dtype for a in arrays]
    return convert_to_einsum(statement, shapes, dtypes, statement.operands)


@lru_cache(maxsize=256)
def canonical_program(program: Program) -> Program:
    """Return the program with canonical names, in a canonical order.

    Raises:
        CanonicalizationError: if the search takes too long.

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
    graph = _build_graph(program)
    try:
        positions = compute_places(graph.colors, graph.edges)
    except CanonicalizationError as error:
        n = len(program.statements)
        raise CanonicalizationError(
            f"a program of {format_count(n, 'statement')} cannot be "
            f"canonicalized: {error}"
        ) from None
    return _Renaming(program, graph, positions).program()


def _build_graph(program: Program) -> _Graph:
    graph = _Graph()
    inputs = {operand.name for operand in program.inputs}
    for name, operand in program.arrays.items():
        vertex = graph.add("array", name in inputs, text=operand.dtype.str)
        graph.arrays[name] = vertex
        # extents of results follow from those of the inputs
        if name in inputs:
            _add_shape(graph, vertex, operand.shape)
    for statement in program.statements:
        _add_statement(graph, program, statement)
    return graph


def _add_shape(graph: _Graph, vertex: int, shape: tuple[Extent, ...]) -> None:
    """Add the extents of an input that no statement may read."""
    for axis_number, extent in enumerate(shape):
        literal = extent if isinstance(extent, int) else -1
        axis = graph.add("extent", axis_number, literal)
        graph.edges.append((vertex, axis))
        if isinstance(extent, SizeParam):
            graph.edges.append((axis, _add_param(graph, extent)))


def _add_param(graph: _Graph, extent: SizeParam) -> int:
    if extent not in graph.params:
        graph.params[extent] = graph.add("size-param")
    return graph.params[extent]


def _add_statement(graph: _Graph, program: Program, statement: Statement) -> None:
    body, numbers = _number_indices(statement)
    wanted = statement.result in program.outputs
    vertex = graph.add("statement", wanted, text=f"{statement.reduction}\0{body}")
    graph.statements[statement.result] = vertex
    graph.edges.append((vertex, graph.arrays[statement.result]))
    for index, extent in program.extents(statement).items():
        position = statement.output.index(index) if index in statement.output else -1
        literal = extent if isinstance(extent, int) else -1
        vertex_of_index = graph.add("index", position, numbers.get(index, -1), literal)
        graph.indices[statement.result, index] = vertex_of_index
        graph.edges.append((vertex, vertex_of_index))
        if isinstance(extent, SizeParam):
            graph.edges.append((vertex_of_index, _add_param(graph, extent)))
    for position in range(len(statement.operands)):
        _add_use(graph, statement, position, vertex)


def _add_use(graph: _Graph, statement: Statement, position: int, vertex: int) -> None:
    # the operands of a product commute, so they have no position
    use = graph.add("use", -1 if statement.is_product else position)
    graph.uses[statement.result, position] = use
    graph.edges += [(use, vertex), (use, graph.arrays[statement.operands[position]])]
    axes = []
    for axis_number, index in enumerate(statement.inputs[position]):
        axes.append(graph.add("axis", axis_number))
        graph.edges.append((axes[-1], graph.indices[statement.result, index]))
    # a chain of vertices in the order of the axes
    graph.edges += pairwise([use, *axes])


def _number_indices(statement: Statement) -> tuple[str, Mapping[str, int]]:
    """Replace index names in a body by numbers; return the body and the numbers."""
    if statement.factor is not None:
        product = write_product(len(statement.operands))
        return (
            product if statement.factor == 1 else f"{statement.factor!r}*{product}"
        ), {}
    # numbered by first use, so that the body does not depend on names
    used = [name for name in list_names(statement.body) if name in statement.indices]
    numbers = {index: k for k, index in enumerate(used)}
    return normalize_body(
        statement.body, {i: f"_{k}" for i, k in numbers.items()}
    ), numbers


class _Renaming:
    """Renames and orders a program by the canonical positions of its vertices."""

    def __init__(self, program: Program, graph: _Graph, positions: list[int]) -> None:
        self.source, self.graph, self.positions = program, graph, positions
        self.order = self._sort_statements()
        self.inputs = sorted(
            (operand.name for operand in program.inputs),
            key=lambda name: positions[graph.arrays[name]],
        )
        self.names = {name: f"A{k}" for k, name in enumerate(self.inputs)}
        self.names |= {
            statement.result: f"R{k}" for k, statement in enumerate(self.order)
        }

    def program(self) -> Program:
        params = sorted(
            self.graph.params, key=lambda x: self.positions[self.graph.params[x]]
        )
        extents = {param: SizeParam(f"N{k}") for k, param in enumerate(params)}
        arrays = self.source.arrays
        inputs = []
        for name in self.inputs:
            operand = arrays[name]
            shape = tuple(
                extents[x] if isinstance(x, SizeParam) else x for x in operand.shape
            )
            inputs.append(type(operand)(self.names[name], shape, operand.dtype))
        outputs = sorted(
            (self.names[n] for n in self.source.outputs), key=lambda n: int(n[1:])
        )
        statements = [self._rename_statement(statement) for statement in self.order]
        return Program(tuple(inputs), tuple(statements), tuple(outputs))

    def _sort_statements(self) -> list[Statement]:
        """Sort statements topologically; ties by their vertices' positions."""
        remaining = {
            statement.result: statement for statement in self.source.statements
        }
        ordered: list[Statement] = []
        while remaining:
            free = [
                statement
                for statement in remaining.values()
                if not any(name in remaining for name in statement.operands)
            ]
            # independent statements are in canonical order
            first = min(
                free, key=lambda x: self.positions[self.graph.statements[x.result]]
            )
            ordered.append(remaining.pop(first.result))
        return ordered

    def _rename_statement(self, statement: Statement) -> Statement:
        uses = [
            self.positions[self.graph.uses[statement.result, p]]
            for p in range(len(statement.operands))
        ]
        order = [*range(len(uses))]
        # factors of a product are in canonical order
        if statement.is_product:
            order.sort(key=lambda p: uses[p])
        letters = self._name_indices(statement)
        body, positions = _number_indices(statement)
        by_number = {f"_{k}": letters[index] for index, k in positions.items()}
        return Statement(
            self.names[statement.result],
            tuple(letters[index] for index in statement.output),
            tuple(tuple(letters[i] for i in statement.inputs[p]) for p in order),
            tuple(self.names[statement.operands[p]] for p in order),
            normalize_body(body, by_number),
            statement.reduction,
        )

    def _name_indices(self, statement: Statement) -> Mapping[str, str]:
        """Name the indices of the result, then the others by their positions."""
        reduced = sorted(
            statement.reduced_indices,
            key=lambda i: self.positions[self.graph.indices[statement.result, i]],
        )
        return {
            index: ascii_lowercase[k] if k < 26 else f"i{k}"
            for k, index in enumerate([*statement.output, *reduced])
        }
