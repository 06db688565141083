"""Nodes of a tree in the expressions of a kernel: their places, and their indices.

A loop over nodes has values that are places in arrays. In *marked* expressions, the
place and the index of a node of the loop ``p`` are the variables ``p#`` and ``p@``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import loopy as lp
from loopy.symbolic import IdentityMapper, SubstitutionMapper, get_dependencies
from pymbolic import primitives as p
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.errors import NotAnEinsumError
from feinsum.raising.compressed import Level, same_place, subscripts
from feinsum.raising.nest import PARENT, PLACE, Expression, Tree, TreeLevel

INDEX, ENTRY = "@", "#"
"""After the name of a loop over nodes: the index of a node, and its place."""


def refused(insn: lp.InstructionBase, what: str) -> NotAnEinsumError:
    """The refusal of an instruction in loops over nodes."""
    return NotAnEinsumError(
        f"instruction {insn.id!r}: {what}", rule="compressed", instructions=(insn.id,)
    )


def with_names(expression: Expression, names: Mapping[str, str]) -> Expression:
    """An expression in other variables.

    >>> from pymbolic import parse
    >>> print(with_names(parse("v[p] + q"), {"p": "k"}))
    v[k] + q
    """
    variables = {old: p.Variable(new) for old, new in names.items()}
    return SubstitutionMapper(make_subst_func(variables))(expression)


@dataclass(frozen=True)
class Nodes:
    """The loops over the nodes of a tree, from its root.

    Attributes:
        inames: of the loops. The first one may have bounds that are known.
        levels: the loops over children of nodes.
        arrays: by loop, the array of the indices of its nodes.
        is_root_stored: the first loop has known bounds and runs over nodes, not over
            all values of an index.
    """

    inames: tuple[str, ...]
    levels: Mapping[str, Level]
    arrays: Mapping[str, str]
    is_root_stored: bool = False

    @classmethod
    def of(
        cls,
        insn: lp.InstructionBase,
        inames: Collection[str],
        levels: Mapping[str, Level],
        values: Sequence[Expression],
    ) -> Nodes:
        """Those of an instruction.

        Args:
            inames: of its loops and sums.
            levels: of the kernel.
            values: what it reads, and its assignee.

        Raises:
            NotAnEinsumError: if they are no path, or have two arrays of indices.
        """
        path = _path(insn, inames, levels)
        found = cls(path, levels, {})
        if path[0] not in levels:
            stored = replace(found, is_root_stored=True).with_arrays(insn, values)
            found = replace(found, is_root_stored=stored.explains_root(values))
        return found.with_arrays(insn, values)

    def with_arrays(
        self, insn: lp.InstructionBase, values: Sequence[Expression]
    ) -> Nodes:
        """With the arrays of indices of nodes.

        Raises:
            NotAnEinsumError: if there are two for one loop.
        """
        found = _gathers(map(self._placed, values))
        for iname, arrays in found.items():
            if len(arrays) > 1 and iname in self.levels:
                raise refused(
                    insn, f"nodes of {iname!r} have indices in {sorted(arrays)}"
                )
        # the smallest name: the order of a set differs between processes
        return replace(self, arrays={i: min(arrays) for i, arrays in found.items()})

    def explains_root(self, values: Iterable[Expression]) -> bool:
        """Whether all that depends on the root does so by the indices of nodes."""
        root = self.inames[0]
        marked = [_indexed(self._placed(value), self.arrays) for value in values]
        names = {name for value in marked for name in get_dependencies(value)}
        return root in self.arrays and not names & {root, root + ENTRY}

    @property
    def stored(self) -> frozenset[str]:
        """The loops whose values are places."""
        root = {self.inames[0]} if self.is_root_stored else set[str]()
        return frozenset(self.levels.keys() & {*self.inames} | root)

    def _placed(self, expression: Expression) -> Expression:
        """With the mark of a place, where it is a subscript."""
        places = {i: self.levels[i].place for i in self.inames if i in self.levels}
        if self.is_root_stored:
            places[self.inames[0]] = p.Variable(self.inames[0])
        return _Placed(places)(expression)

    def marked(self, insn: lp.InstructionBase, expression: Expression) -> Expression:
        """With marks for the places and the indices of nodes.

        Raises:
            NotAnEinsumError: if it depends on a loop over nodes in another way.
        """
        found = _indexed(self._placed(expression), self.arrays)
        if wrong := sorted(get_dependencies(found) & self.stored):
            raise refused(
                insn,
                f"{expression} depends on {wrong[0]!r}, which runs over nodes of a "
                "tree, other than by an array of indices or of values",
            )
        return found

    def by_index(self, marked: Expression) -> Expression:
        """In which a loop over nodes stands for their indices."""
        return with_names(marked, {i + INDEX: i for i in self.inames})

    def bare(self, marked: Expression) -> Expression:
        """In which it stands for both; of the same dtype and names."""
        names = {i + mark: i for i in self.inames for mark in (INDEX, ENTRY)}
        return with_names(marked, names)

    def in_kernel(self, marked: Expression) -> Expression:
        """In which it stands for places, and indices are read."""
        points = {i + INDEX: self.point(i) for i in self.inames}
        places = {i + ENTRY: p.Variable(i) for i in self.inames}
        return SubstitutionMapper(make_subst_func({**points, **places}))(marked)

    def point(self, index: str) -> Expression:
        """The value of an index, by the place of its node."""
        array, place = self.arrays.get(index), p.Variable(index)
        return p.Variable(array)[place] if array else place

    def marks(self, marked: Expression, mark: str) -> set[str]:
        """The loops of which an expression has this mark."""
        names = get_dependencies(marked)
        return {i for i in self.inames if i + mark in names}

    def is_leaf_of(self, array: str, marked: Expression) -> bool:
        """Whether an expression is the entry of an array at the place of a leaf."""
        leaf = p.Variable(self.inames[-1] + ENTRY)
        return bool(marked == p.Variable(array)[leaf])

    def tree(self, root_end: Expression, loads: Iterable[str]) -> Tree:
        """The tree as it is stored.

        Args:
            root_end: of the first loop, if its bounds are known.
            loads: see :class:`Tree`.
        """
        found = []
        for iname in self.inames:
            level, array = self.levels.get(iname), self.arrays.get(iname)
            begin, end = (0, root_end) if level is None else _children(level)
            is_all = level is None and not self.is_root_stored
            index = PLACE if is_all else p.Variable(array)[PLACE] if array else None
            found.append(TreeLevel(begin, end, index))
        return Tree(self.inames, tuple(found), tuple(sorted(loads)))


def _children(level: Level) -> tuple[Expression, Expression]:
    above = level.parent if isinstance(level.parent, int) else PARENT
    pointers = p.Variable(level.pointers)
    return pointers[above], pointers[above + 1]


def _path(
    insn: lp.InstructionBase, inames: Collection[str], levels: Mapping[str, Level]
) -> tuple[str, ...]:
    """The loops over nodes of an instruction, as a path from the root."""
    own = {i: levels[i] for i in sorted(inames) if i in levels}
    above = {i: _above(insn, level, inames, levels) for i, level in own.items()}
    leaves = own.keys() - {*above.values()}
    path: list[str] = []
    at = min(leaves, default=None)
    while at is not None and at not in path:
        path.insert(0, at)
        at = above.get(at)
    if len(leaves) != 1 or not own.keys() <= {*path}:
        raise refused(
            insn, f"its loops {sorted(own)} over nodes do not form a path of a tree"
        )
    return tuple(path)


def _above(
    insn: lp.InstructionBase,
    level: Level,
    inames: Collection[str],
    levels: Mapping[str, Level],
) -> str | None:
    """The loop over the nodes whose children another one runs over; none at a root."""
    if isinstance(level.parent, int):
        return None
    for iname in sorted(inames):
        place = levels[iname].place if iname in levels else p.Variable(iname)
        if same_place(place, level.parent):
            return iname
    raise refused(
        insn,
        f"{level.iname!r} runs over children of {level.parent}, which is not a node of "
        "its loops",
    )


def _gathers(placed: Iterable[Expression]) -> dict[str, set[str]]:
    """By loop, the arrays whose entries at places of its nodes are in subscripts."""
    found: dict[str, set[str]] = {}
    for expression in placed:
        for outer in subscripts(expression):
            for inner in (x for axis in outer.index_tuple for x in subscripts(axis)):
                place, *others = inner.index_tuple
                name = getattr(place, "name", "")
                if name.endswith(ENTRY) and not others:
                    arrays = found.setdefault(name.removesuffix(ENTRY), set())
                    arrays.add(inner.aggregate.name)
    return found


def _indexed(placed: Expression, arrays: Mapping[str, str]) -> Expression:
    """With the mark of an index for what an array has at the place of a node."""
    marks = {
        p.Variable(array)[p.Variable(iname + ENTRY)]: p.Variable(iname + INDEX)
        for iname, array in arrays.items()
    }
    return SubstitutionMapper(marks.get)(placed)


class _Placed(IdentityMapper):  # type: ignore[misc]
    """Marks places of nodes, where they are subscripts."""

    def __init__(self, places: Mapping[str, Expression]) -> None:
        super().__init__()
        self.places = places

    def map_subscript(self, expr: p.Subscript, /) -> Expression:
        axes = tuple(map(self._axis, expr.index_tuple))
        return p.Subscript(expr.aggregate, axes[0] if len(axes) == 1 else axes)

    def _axis(self, axis: Expression) -> Expression:
        for name, place in self.places.items():
            if same_place(axis, place):
                return p.Variable(name + ENTRY)
        return self.rec(axis)
