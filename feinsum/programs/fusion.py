"""Fusion: statements that become one functional batched einsum.

A contraction absorbs the maps that produce its operands, as operand functions, and the
map that finishes its sum, as scale and shift. Contractions with the same subscripts
that share an operand become rows of one batch. Fused intermediates are never stored::

    mean = map 0.5*(x0 + x1) : u, v lifted[e,i] = sum x0*x1 : L[i,j], mean[e,j] y = map
    x1 - x0 : lifted, w           y[e,i] = w[e,i] - sum_j L[i,j]*0.5*(u + v)[e,j]

Source: Feinsum, section 7 (functional batched einsums).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np

from feinsum.ir import Operand, SizeParam, bind_shape
from feinsum.ir.expressions import (
    get_operand_name,
    is_cheap,
    split_linear,
    substitute_names,
)
from feinsum.ir.program import Program
from feinsum.ir.statement import Statement
from feinsum.programs.choice import KernelChoice, Results, get_shared_choice

MIN_SHARE = 0.1
"""The fraction of an einsum's time bound that a fusion must save."""
MIN_BYTES = 1 << 18
"""The bytes that a fusion must save: fewer stay in the caches anyway."""

BYTES_PER_S = 1e10
"""Bandwidth of memory of a typical machine, which bounds einsums."""

OPERATIONS_PER_S = 1e11
"""Operations per second of two typical cores, which bound einsums."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class FusedRow:
    """A contraction with the maps that it absorbs.

    Attributes:
        maps: the maps that produce operands of the contraction.
        finish: the map that reads its sum; None if the sum is the result.
    """

    contraction: Statement
    maps: tuple[Statement, ...] = ()
    finish: Statement | None = None

    @property
    def last(self) -> Statement:
        return self.contraction if self.finish is None else self.finish

    @property
    def statements(self) -> tuple[Statement, ...]:
        finishes = () if self.finish is None else (self.finish,)
        return (*self.maps, self.contraction, *finishes)

    @cached_property
    def indices(self) -> Mapping[str, str]:
        """The indices of the contraction, by the names common to a batch."""
        return {i: f"i{k}" for k, i in enumerate(self.contraction.indices)}

    @cached_property
    def pattern(self) -> object:
        """The contraction's notation with common names: equal for rows of one batch."""
        contraction, names = self.contraction, self.indices
        terms = (contraction.output, *contraction.inputs)
        return tuple(tuple(names[i] for i in term) for term in terms)

    def factors(self) -> tuple[str, ...]:
        """Write each operand as an expression over arrays of the program."""
        return tuple(
            self._read(name, [self.indices[i] for i in term])
            for name, term in self.contraction.accesses
        )

    def scale_and_shift(self) -> tuple[str, str]:
        """Return the scale of the sum, and the shift added to it."""
        factor = self.contraction.factor
        multiplier = "1" if factor == 1 else repr(factor)
        if self.finish is None:
            return multiplier, "0"
        finish = self.finish
        # the map reads the sum exactly once, as _finish ensures
        k = finish.operands.index(self.contraction.result)
        linear = split_linear(finish.body, get_operand_name(k))
        assert linear is not None
        pairs = zip(finish.inputs[k], self.contraction.output, strict=True)
        names = {theirs: self.indices[ours] for theirs, ours in pairs}
        texts = {
            get_operand_name(n): _write_subscript(name, [names[i] for i in term])
            for n, (name, term) in enumerate(finish.accesses)
            if n != k
        }
        scale, shift = (
            text if text in ("0", "1") else substitute_names(text, {**names, **texts})
            for text in linear
        )
        return (scale if multiplier == "1" else f"{multiplier} * ({scale})"), shift

    def _read(self, name: str, indices: Sequence[str]) -> str:
        producer = next((x for x in self.maps if x.result == name), None)
        if producer is None:
            return _write_subscript(name, indices)
        names = dict(zip(producer.output, indices, strict=True))
        texts = {
            get_operand_name(k): self._read(operand, [names[i] for i in term])
            for k, (operand, term) in enumerate(producer.accesses)
        }
        return substitute_names(producer.body, {**names, **texts})


@dataclass(frozen=True)
class Fusion:
    """Rows of one functional batched einsum.

    Attributes:
        saved_bytes: bytes that are neither written nor read again.
    """

    rows: tuple[FusedRow, ...]
    saved_bytes: int

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        return tuple(statement for row in self.rows for statement in row.statements)

    @cached_property
    def results(self) -> tuple[str, ...]:
        return tuple(row.last.result for row in self.rows)

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The arrays that are read, each once."""
        results = {statement.result for statement in self.statements}
        read = (name for statement in self.statements for name in statement.operands)
        return tuple(dict.fromkeys(name for name in read if name not in results))


def find_fusions(
    program: Program, statements: Sequence[Statement], sizes: Sizes
) -> tuple[Fusion, ...]:
    """Return the fusions that are worthwhile among some statements of a program.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> mean = p.map("0.5*(x0 + x1)", array("u", (9000, 10)), array("v", (9000, 10)))
    >>> lifted = p.einsum("ij,ej->ei", array("L", (20, 10)), mean)
    >>> _ = p.map("x1 - x0", lifted, array("w", (9000, 20)))
    >>> built = p.build()
    >>> (found,) = find_fusions(built, built.statements, {})
    >>> found.rows[0].factors(), found.rows[0].scale_and_shift()
    (('x_L[i1, i2]', '0.5 * (x_u[i0, i2] + x_v[i0, i2])'), ('-1.0', 'x_w[i0, i1]'))
    """
    # the search tracks the statements that are already absorbed
    search = _Search(program, statements, sizes)
    return tuple(search.fusions())


class _Search:
    def __init__(
        self, program: Program, statements: Sequence[Statement], sizes: Sizes
    ) -> None:
        self.program, self.sizes = program, sizes
        self.free = {statement.result: statement for statement in statements}
        self.position = {
            statement.result: k for k, statement in enumerate(program.statements)
        }
        self.used: set[str] = set()

    def fusions(self) -> Iterator[Fusion]:
        """Yield the fusions; each statement is in at most one row."""
        batches: list[list[FusedRow]] = []
        # backwards: a map between two contractions is absorbed by the second one, as an
        # operand function, and not by the first one as its finish
        backwards = [
            self._make_row(statement)
            for statement in reversed(self._list_contractions())
        ]
        for row in reversed(backwards):
            # rows of one pattern share loops and the reads of a common operand
            batch = next((b for b in batches if self._is_fitting(b, row)), None)
            if batch is None:
                batches.append([row])
            else:
                batch.append(row)
        for batch in batches:
            fusion = Fusion(tuple(batch), self._count_saved(batch))
            if self._is_worthwhile(fusion):
                yield fusion
                continue
            single_rows = (Fusion((row,), self._count_saved([row])) for row in batch)
            yield from filter(self._is_worthwhile, single_rows)

    def _list_contractions(self) -> list[Statement]:
        return [
            statement
            for statement in self.free.values()
            if statement.is_contraction
            # a kernel that writes a diagonal would leave most entries unwritten
            and len(set(statement.output)) == len(statement.output)
            and self._is_plain(statement)
        ]

    def _is_plain(self, statement: Statement) -> bool:
        """Return whether all arrays are of one real dtype, and have entries."""
        arrays = [
            self.program.arrays[name]
            for name in (*statement.operands, statement.result)
        ]
        dtypes = {operand.dtype for operand in arrays}
        # generated kernels convert no dtypes
        is_real = len(dtypes) == 1 and dtypes.pop().kind == "f"
        return is_real and all(
            operand.shape and 0 not in bind_shape(operand.shape, self.sizes)
            for operand in arrays
        )

    def _make_row(self, statement: Statement) -> FusedRow:
        maps: dict[str, Statement] = {}
        self._add_maps(statement, statement, maps)
        ordered = sorted(maps.values(), key=lambda x: self.position[x.result])
        row = FusedRow(statement, tuple(ordered), self._find_finish(statement))
        self.used |= {x.result for x in row.statements}
        return row

    def _add_maps(
        self, statement: Statement, reader: Statement, maps: dict[str, Statement]
    ) -> None:
        for name in dict.fromkeys(reader.operands):
            producer = self.free.get(name)
            if producer is not None and self._is_map(producer, [reader]):
                maps[name] = producer
                # maps of maps, as far as they have one reader
                self._add_maps(statement, producer, maps)

    def _is_map(self, statement: Statement, readers: Sequence[Statement]) -> bool:
        return (
            not statement.reduced_indices
            and statement.result not in self.used
            and statement.result not in self.program.outputs
            # with another reader, the result would have to be stored anyway
            and [*self.program.readers(statement.result)] == [*readers]
            and len(set(statement.output)) == len(statement.output)
            and self._is_plain(statement)
            # it is computed again for every use in the sum
            and is_cheap(statement.body, statement.indices)
        )

    def _find_finish(self, statement: Statement) -> Statement | None:
        """Return the only reader if it is linear in the sum, and has its indices."""
        readers = self.program.readers(statement.result)
        if statement.result in self.program.outputs or len(readers) != 1:
            return None
        (reader,) = readers
        if reader.result not in self.free or reader.result in self.used:
            return None
        # a product of the sum with itself is not linear in it
        if reader.operands.count(statement.result) != 1:
            return None
        k = reader.operands.index(statement.result)
        term = reader.inputs[k]
        fits = (
            not reader.reduced_indices
            and len(set(term)) == len(term)
            and sorted(term) == sorted(reader.output)
            and self._is_plain(reader)
            and is_cheap(reader.body, reader.indices)
            and split_linear(reader.body, get_operand_name(k)) is not None
        )
        return reader if fits else None

    def _is_fitting(self, batch: Sequence[FusedRow], row: FusedRow) -> bool:
        """Return whether a row can be one of a batch, and shares an operand with it."""
        first, contraction = batch[0].contraction, row.contraction
        arrays = self.program.arrays
        return (
            row.pattern == batch[0].pattern
            and any(
                a == b
                for a, b in zip(first.operands, contraction.operands, strict=True)
            )
            and [*self.program.extents(first).values()]
            == [*self.program.extents(contraction).values()]
            and arrays[first.result].dtype == arrays[contraction.result].dtype
            and batch[0].last.output == row.last.output
            and self._is_legal([*batch, row])
        )

    def _is_legal(self, rows: Sequence[FusedRow]) -> bool:
        """Return whether other statements read results only after the last one."""
        results = {statement.result for row in rows for statement in row.statements}
        last_position = max(self.position[name] for name in results)
        return all(
            self.position[reader.result] > last_position
            for name in results
            for reader in self.program.readers(name)
            if reader.result not in results
        ) and not any(results & {*Fusion((row,), 0).operands} for row in rows)

    def _count_saved(self, rows: Sequence[FusedRow]) -> int:
        """Return the bytes of memory traffic that a batch of rows saves."""
        total = 0
        for row in rows:
            passed = [*row.maps, *([row.contraction] if row.finish else [])]
            total += sum(
                2 * self.program.n_bytes(statement.result, self.sizes)
                for statement in passed
            )
        # an operand that several rows share is read once
        for names in zip(*(row.contraction.operands for row in rows), strict=True):
            total += (len(names) - len(set(names))) * self.program.n_bytes(
                names[0], self.sizes
            )
        return total

    def _is_worthwhile(self, fusion: Fusion) -> bool:
        """Return whether a fusion saves a sufficient share of the time bound."""
        if fusion.saved_bytes < MIN_BYTES or not self._is_legal(fusion.rows):
            return False
        contraction = fusion.rows[0].contraction
        points = prod(self.program.extents_at(contraction, self.sizes).values())
        operations = len(contraction.operands) * points * len(fusion.rows)
        arrays = {*fusion.operands, *fusion.results}
        n_bytes = sum(self.program.n_bytes(name, self.sizes) for name in arrays)
        # no kernel is faster than the roofline, so the estimated share is an upper
        # bound
        bound_s = max(operations / OPERATIONS_PER_S, n_bytes / BYTES_PER_S)
        return fusion.saved_bytes / BYTES_PER_S >= MIN_SHARE * bound_s


def get_fused_name(name: str) -> str:
    """Return the name of an array in a kernel, distinct from all index names."""
    return f"x_{name}"


def _write_subscript(name: str, indices: Sequence[str]) -> str:
    return f"{get_fused_name(name)}[{', '.join(indices)}]"


Array = np.ndarray[Any, np.dtype[Any]]
Kernel = Callable[[Mapping[str, Array]], Results]


def get_choice(
    program: Program, fusion: Fusion, sizes: Mapping[str, int]
) -> KernelChoice[Mapping[str, Array]]:
    """Return the choice of a fusion, shared by programs with the same statements."""
    arrays = tuple(program.arrays[name] for name in (*fusion.operands, *fusion.results))
    key = fusion.rows, arrays, tuple(sorted(sizes.items()))
    build = partial(_build_kernel, program, fusion, dict(sizes))
    return get_shared_choice(key, lambda: KernelChoice(build))


def _build_kernel(program: Program, fusion: Fusion, sizes: dict[str, int]) -> Kernel:
    """Return the kernel with the best recipe that is known or predicted.

    Raises:
        FeinsumError: if there is no recipe, or if the kernel cannot be built.
    """
    # imported when needed: loading Loopy takes a second
    from feinsum.codegen.generate import ScaledSum, generate_rows
    from feinsum.measure import compile_kernel, open_device
    from feinsum.result_memory import make_aligned
    from feinsum.retrieval import retrieve

    first = fusion.rows[0]
    extents = {
        first.indices[i]: n for i, n in program.extents(first.contraction).items()
    }
    rows = [
        ScaledSum(
            _rename_operand(program.arrays[row.last.result]),
            _order_output(row),
            row.factors(),
            *row.scale_and_shift(),
        )
        for row in fusion.rows
    ]
    arrays = [_rename_operand(program.arrays[name]) for name in fusion.operands]
    opened = open_device("")
    unit = opened.prepare(generate_rows(rows, arrays, extents))
    used = {x.name: sizes[x.name] for x in extents.values() if isinstance(x, SizeParam)}
    retrieved = retrieve(unit, arguments=used, on_miss="raise")
    built = compile_kernel(retrieved, opened).built
    shapes = {name: program.shape_at(name, sizes) for name in fusion.results}

    def run_kernel(operands: Mapping[str, Array]) -> Results:
        results = {
            name: make_aligned(shapes[name], program.arrays[name].dtype)
            for name in fusion.results
        }
        values = {
            get_fused_name(name): np.ascontiguousarray(array)
            for name, array in {**operands, **results}.items()
        }
        built.run({**values, **used}, "wall")
        return results

    return run_kernel


def _order_output(row: FusedRow) -> tuple[str, ...]:
    """Return a row's output indices in the order of the axes, named as in the batch."""
    if row.finish is None:
        return tuple(row.indices[i] for i in row.contraction.output)
    finish = row.finish
    term = finish.inputs[finish.operands.index(row.contraction.result)]
    names = dict(zip(term, row.contraction.output, strict=True))
    return tuple(row.indices[names[i]] for i in finish.output)


def _rename_operand(operand: Operand) -> Operand:
    return Operand(get_fused_name(operand.name), operand.shape, operand.dtype)
