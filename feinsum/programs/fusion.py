"""Fusion: statements that become one functional batched einsum.

A contraction absorbs the maps that produce its operands, as operand functions, and the
map that finishes its sum, as scale and shift. Contractions with the same subscripts
that share an operand become rows of one batch. Fused intermediates are never stored.

Source: Feinsum, section 7 (functional batched einsums).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from feinsum.ir import Extent, Operand, SizeParam
from feinsum.ir.expressions import is_cheap, linear_in, operand_name, substituted
from feinsum.ir.program import Program
from feinsum.ir.statement import Statement

LEAST_SHARE = 0.1
"""The fraction of an einsum's time bound that a fusion must save."""
LEAST_BYTES = 1 << 18
"""The minimum bytes that it must save: less stays in the caches anyway."""
BYTES_PER_S = 1e10
OPERATIONS_PER_S = 1e11
"""Rates that bound einsums; both are typical of two cores."""

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
        rest = () if self.finish is None else (self.finish,)
        return (*self.maps, self.contraction, *rest)

    @cached_property
    def indices(self) -> Mapping[str, str]:
        """The indices of the contraction, by the names common to a batch."""
        return {i: f"i{k}" for k, i in enumerate(self.contraction.indices)}

    @cached_property
    def pattern(self) -> object:
        """Equal for rows of one batch."""
        one, names = self.contraction, self.indices
        terms = (one.output, *one.inputs)
        return tuple(tuple(names[i] for i in term) for term in terms)

    def factors(self) -> tuple[str, ...]:
        """For each operand, an expression over arrays, by their program names."""
        one = self.contraction
        return tuple(
            self._read(name, [self.indices[i] for i in term])
            for name, term in zip(one.operands, one.inputs, strict=True)
        )

    def scale_and_shift(self) -> tuple[str, str]:
        """The scale of the sum, and the shift added to it."""
        factor = self.contraction.factor
        own = "1" if factor == 1 else repr(factor)
        if self.finish is None:
            return own, "0"
        one = self.finish
        k = one.operands.index(self.contraction.result)
        found = linear_in(one.body, operand_name(k))
        assert found is not None
        made = zip(one.inputs[k], self.contraction.output, strict=True)
        names = {theirs: self.indices[ours] for theirs, ours in made}
        texts = {
            operand_name(n): _subscripted(name, [names[i] for i in term])
            for n, (name, term) in enumerate(zip(one.operands, one.inputs, strict=True))
            if n != k
        }
        scale, shift = (
            text if text in ("0", "1") else substituted(text, {**names, **texts})
            for text in found
        )
        return (scale if own == "1" else f"{own} * ({scale})"), shift

    def _read(self, name: str, places: Sequence[str]) -> str:
        made = next((x for x in self.maps if x.result == name), None)
        if made is None:
            return _subscripted(name, places)
        names = dict(zip(made.output, places, strict=True))
        texts = {
            operand_name(k): self._read(other, [names[i] for i in term])
            for k, (other, term) in enumerate(
                zip(made.operands, made.inputs, strict=True)
            )
        }
        return substituted(made.body, {**names, **texts})


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
        return tuple(one for row in self.rows for one in row.statements)

    @cached_property
    def results(self) -> tuple[str, ...]:
        return tuple(row.last.result for row in self.rows)

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The arrays that are read, each once."""
        made = {one.result for one in self.statements}
        read = (name for one in self.statements for name in one.operands)
        return tuple(dict.fromkeys(name for name in read if name not in made))


def fusions_of(
    program: Program, statements: Sequence[Statement], sizes: Sizes
) -> tuple[Fusion, ...]:
    """The fusions that are worthwhile among some statements of a program.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> mean = p.map("0.5*(x0 + x1)", array("u", (9000, 10)), array("v", (9000, 10)))
    >>> lifted = p.einsum("ij,ej->ei", array("L", (20, 10)), mean)
    >>> _ = p.map("x1 - x0", lifted, array("w", (9000, 20)))
    >>> built = p.build()
    >>> (found,) = fusions_of(built, built.statements, {})
    >>> found.rows[0].factors(), found.rows[0].scale_and_shift()
    (('x_L[i1, i2]', '0.5 * (x_u[i0, i2] + x_v[i0, i2])'), ('-1.0', 'x_w[i0, i1]'))
    """
    search = _Search(program, statements, sizes)
    return tuple(search.fusions())


class _Search:
    def __init__(
        self, program: Program, statements: Sequence[Statement], sizes: Sizes
    ) -> None:
        self.program, self.sizes = program, sizes
        self.free = {one.result: one for one in statements}
        self.place = {one.result: k for k, one in enumerate(program.statements)}
        self.used: set[str] = set()

    def fusions(self) -> Iterator[Fusion]:
        """No statement is in two rows: the last contraction absorbs first."""
        batches: list[list[FusedRow]] = []
        backwards = [self._row(one) for one in reversed(self._contractions())]
        for row in reversed(backwards):
            batch = next((b for b in batches if self._fits(b, row)), None)
            if batch is None:
                batches.append([row])
            else:
                batch.append(row)
        for batch in batches:
            whole = Fusion(tuple(batch), self._saved(batch))
            parts = [Fusion((row,), self._saved([row])) for row in batch]
            yield from (
                [whole]
                if self._pays(whole)
                else [part for part in parts if self._pays(part)]
            )

    def _contractions(self) -> list[Statement]:
        return [
            one
            for one in self.free.values()
            if one.is_contraction
            and len(set(one.output)) == len(one.output)
            and self._is_plain(one)
        ]

    def _is_plain(self, one: Statement) -> bool:
        """Whether its arrays are of one dtype of real numbers, and have entries."""
        arrays = [self.program.arrays[name] for name in (*one.operands, one.result)]
        dtypes = {operand.dtype for operand in arrays}
        is_real = len(dtypes) == 1 and dtypes.pop().kind == "f"
        return is_real and all(
            operand.shape and 0 not in self._shape(operand) for operand in arrays
        )

    def _row(self, one: Statement) -> FusedRow:
        maps: dict[str, Statement] = {}
        self._add_maps(one, one, maps)
        ordered = sorted(maps.values(), key=lambda x: self.place[x.result])
        row = FusedRow(one, tuple(ordered), self._finish(one))
        self.used |= {x.result for x in row.statements}
        return row

    def _add_maps(
        self, one: Statement, reader: Statement, maps: dict[str, Statement]
    ) -> None:
        for name in dict.fromkeys(reader.operands):
            made = self.free.get(name)
            if made is not None and self._is_map(made, [reader]):
                maps[name] = made
                self._add_maps(one, made, maps)

    def _is_map(self, one: Statement, readers: Sequence[Statement]) -> bool:
        return (
            not one.reduced_indices
            and one.result not in self.used
            and not self._is_wanted(one)
            and [*self.program.readers(one.result)] == [*readers]
            and len(set(one.output)) == len(one.output)
            and self._is_plain(one)
            and is_cheap(one.body, one.indices)
        )

    def _is_wanted(self, one: Statement) -> bool:
        return one.result in self.program.outputs

    def _finish(self, one: Statement) -> Statement | None:
        """The only reader, if it is linear in the sum and has the same indices."""
        readers = self.program.readers(one.result)
        if self._is_wanted(one) or len(readers) != 1:
            return None
        (last,) = readers
        if last.result not in self.free or last.result in self.used:
            return None
        if last.operands.count(one.result) != 1:
            return None
        k = last.operands.index(one.result)
        term = last.inputs[k]
        fits = (
            not last.reduced_indices
            and len(set(term)) == len(term)
            and sorted(term) == sorted(last.output)
            and self._is_plain(last)
            and is_cheap(last.body, last.indices)
            and linear_in(last.body, operand_name(k)) is not None
        )
        return last if fits else None

    def _fits(self, batch: Sequence[FusedRow], row: FusedRow) -> bool:
        """Whether a row can be one of a batch, and shares an operand with it."""
        first, one = batch[0].contraction, row.contraction
        arrays = self.program.arrays
        return (
            row.pattern == batch[0].pattern
            and any(a == b for a, b in zip(first.operands, one.operands, strict=True))
            and _extents(self.program, first) == _extents(self.program, one)
            and arrays[first.result].dtype == arrays[one.result].dtype
            and batch[0].last.output == row.last.output
            and self._is_legal([*batch, row])
        )

    def _is_legal(self, rows: Sequence[FusedRow]) -> bool:
        """Whether nothing else needs a result before the last one can be there."""
        own = {one.result for row in rows for one in row.statements}
        last = max(self.place[name] for name in own)
        return all(
            self.place[reader.result] > last
            for name in own
            for reader in self.program.readers(name)
            if reader.result not in own
        ) and not any(name in own for row in rows for name in self._from_outside(row))

    def _from_outside(self, row: FusedRow) -> set[str]:
        own = {one.result for one in row.statements}
        return {name for one in row.statements for name in one.operands} - own

    def _saved(self, rows: Sequence[FusedRow]) -> int:
        """Bytes that are not written and read, or not read once more."""
        total = 0
        for row in rows:
            passed = [*row.maps, *([row.contraction] if row.finish else [])]
            total += sum(2 * self._n_bytes(one.result) for one in passed)
        for names in zip(*(row.contraction.operands for row in rows), strict=True):
            total += (len(names) - len(set(names))) * self._n_bytes(names[0])
        return total

    def _pays(self, found: Fusion) -> bool:
        """Whether the savings are a good part of the einsum's minimum time."""
        if found.saved_bytes < LEAST_BYTES or not self._is_legal(found.rows):
            return False
        one = found.rows[0].contraction
        points = prod(map(self._value, self.program.extents(one).values()))
        operations = len(one.operands) * points * len(found.rows)
        arrays = {*found.operands, *found.results}
        n_bytes = sum(map(self._n_bytes, arrays))
        bound_s = max(operations / OPERATIONS_PER_S, n_bytes / BYTES_PER_S)
        return found.saved_bytes / BYTES_PER_S >= LEAST_SHARE * bound_s

    def _n_bytes(self, name: str) -> int:
        operand = self.program.arrays[name]
        return prod(self._shape(operand)) * operand.dtype.itemsize

    def _shape(self, operand: Operand) -> tuple[int, ...]:
        return tuple(map(self._value, operand.shape))

    def _value(self, extent: Extent) -> int:
        return self.sizes[extent.name] if isinstance(extent, SizeParam) else extent


def _extents(program: Program, one: Statement) -> tuple[Extent, ...]:
    return tuple(program.extents(one).values())


def array_name(name: str) -> str:
    """The name of an array in a kernel, distinct from all index names."""
    return f"x_{name}"


def _subscripted(name: str, places: Sequence[str]) -> str:
    return f"{array_name(name)}[{', '.join(places)}]"
