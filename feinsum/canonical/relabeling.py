"""Relabelings: the isomorphisms between batched einsums.

Source: paper, section 5 (isomorphic batched einsums).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from constantdict import constantdict

from feinsum.errors import InvalidEinsumError
from feinsum.ir import BatchedEinsum, Extent, IndexList, Operand, SizeParam

__all__ = ["Relabeling"]


@dataclass(frozen=True)
class Relabeling:
    """Bijections on names, and permutations of rows and of each row's operands.

    Attributes:
        indices, operands, size_params: old name to new name.
        rows: ``rows[k]`` is the old row that becomes row ``k``.
        positions: ``positions[k][p]`` is the old position of what stands at
            position ``p`` of the new row ``k``.
    """

    indices: constantdict[str, str]
    operands: constantdict[str, str]
    size_params: constantdict[str, str]
    rows: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for what, names in (
            ("indices", self.indices),
            ("operands", self.operands),
            ("size_params", self.size_params),
        ):
            if len(set(names.values())) != len(names):
                raise _no_bijection(what, dict(names))
        for order in (self.rows, *dict.fromkeys(self.positions)):
            if sorted(order) != list(range(len(order))):
                raise _no_bijection("rows or positions", order)

    def apply(self, einsum: BatchedEinsum) -> BatchedEinsum:
        """The relabeled einsum.

        Raises:
            InvalidEinsumError: if this is no relabeling of ``einsum``: names or rows
                are missing, or the operands of two rows come in different terms.

        >>> from feinsum.ir import array, einsum
        >>> from feinsum.canonical.form import canonicalize
        >>> e = einsum("zy,y->z", array("q", (3, 4)), array("w", 4))
        >>> form = canonicalize(e)
        >>> form.relabeling.apply(e) == form.einsum
        True
        """
        self._check_rows(einsum)
        try:
            return self._applied(einsum)
        except KeyError as error:
            raise _misfit("names", f"without {error}", str(einsum)) from None

    def _applied(self, einsum: BatchedEinsum) -> BatchedEinsum:
        indices, rows = self.indices, einsum.rows
        operands = {op.name: self._operand(op) for op in einsum.operands}
        return BatchedEinsum(
            _renamed(einsum.output, indices),
            tuple([_renamed(einsum.inputs[p], indices) for p in self.positions[0]]),
            tuple(
                [
                    tuple([operands[rows[old][p].name] for p in positions])
                    for old, positions in zip(self.rows, self.positions, strict=True)
                ]
            ),
        )

    def _check_rows(self, einsum: BatchedEinsum) -> None:
        """Rows and positions are as many, and all rows come in the same terms."""
        orders = dict.fromkeys(self.positions)
        sizes = [len(self.rows), *{len(order) for order in orders}]
        if sizes != [einsum.batch_size, einsum.n_operands]:
            raise _misfit("rows and positions", sizes, str(einsum))
        if len({tuple([einsum.inputs[p] for p in order]) for order in orders}) > 1:
            raise _misfit("positions", list(orders), einsum.subscripts)

    def inverse(self) -> Relabeling:
        """The relabeling that leads back."""
        new_row = {old: new for new, old in enumerate(self.rows)}
        order = tuple(new_row[old] for old in range(len(self.rows)))
        return Relabeling(
            _inverted(self.indices),
            _inverted(self.operands),
            _inverted(self.size_params),
            order,
            tuple(_inverse_permutation(self.positions[new]) for new in order),
        )

    def then(self, other: Relabeling) -> Relabeling:
        """The relabeling that does this one first and ``other`` on what it gives.

        Raises:
            InvalidEinsumError: if ``other`` begins with other names or rows.

        >>> from feinsum.ir import array, einsum
        >>> from feinsum.canonical.form import canonicalize
        >>> there = canonicalize(einsum("zy,y->z", array("q", (3, 4)), array("w", 4)))
        >>> back = there.relabeling.inverse()
        >>> dict(there.relabeling.then(back).indices)
        {'z': 'z', 'y': 'y'}
        """
        if len(self.rows) != len(other.rows):
            raise _misfit("rows", len(self.rows), len(other.rows))
        return Relabeling(
            _composed("indices", self.indices, other.indices),
            _composed("operands", self.operands, other.operands),
            _composed("size_params", self.size_params, other.size_params),
            tuple(self.rows[between] for between in other.rows),
            tuple(
                tuple(self.positions[between][p] for p in positions)
                for between, positions in zip(other.rows, other.positions, strict=True)
            ),
        )

    def _operand(self, operand: Operand) -> Operand:
        shape = tuple(self._extent(extent) for extent in operand.shape)
        return replace(operand, name=self.operands[operand.name], shape=shape)

    def _extent(self, extent: Extent) -> Extent:
        if isinstance(extent, SizeParam):
            return SizeParam(self.size_params[extent.name])
        return extent


def _renamed(term: IndexList, names: Mapping[str, str]) -> IndexList:
    return tuple([names[index] for index in term])


def _composed(
    what: str, first: constantdict[str, str], second: constantdict[str, str]
) -> constantdict[str, str]:
    if set(first.values()) != set(second):
        raise _misfit(what, sorted(first.values()), sorted(second))
    return constantdict({old: second[new] for old, new in first.items()})


def _no_bijection(what: str, given: object) -> InvalidEinsumError:
    return InvalidEinsumError(
        f"relabeling of {what} is not a bijection: {given}", rules=("relabeling",)
    )


def _misfit(what: str, given: object, wanted: object) -> InvalidEinsumError:
    return InvalidEinsumError(
        f"the {what} {given} of a relabeling do not fit {wanted}",
        rules=("relabeling",),
    )


def _inverted(names: constantdict[str, str]) -> constantdict[str, str]:
    return constantdict({new: old for old, new in names.items()})


def _inverse_permutation(permutation: tuple[int, ...]) -> tuple[int, ...]:
    inverse = [0] * len(permutation)
    for new, old in enumerate(permutation):
        inverse[old] = new
    return tuple(inverse)
