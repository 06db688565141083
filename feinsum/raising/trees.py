"""Loops over the nodes of a tree, as in CSR and CSF, and nodes in expressions.

A sparse array is a tree with a level for each index. A loop from ``ptr[x]`` to
``ptr[x + 1]`` runs over the children of the node at position ``x`` ::

    for i                             level 0, all rows
        for k in ptr[i] .. ptr[i+1]   level 1, the entries of row i
            y[i] = y[i] + val[k]*x[idx[k]]

The values of ``k`` are positions in arrays, not indices: the entry of a node is
``val[k]``, and its index is ``idx[k]``. In *marked* expressions, the position of a node
of the loop ``k`` is the variable ``k#``, and its index is ``k@``. Here the factors are
``val[k#]``, a value of the tree, and ``x[k@]``, a dense operand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import islpy as isl
import loopy as lp
from loopy.symbolic import (
    IdentityMapper,
    SubstitutionMapper,
    get_dependencies,
    pw_aff_to_expr,
)
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.raising.affine import expand_polynomial
from feinsum.raising.expressions import (
    Expression,
    collect_loops,
    collect_nodes,
    find_writers,
    make_product,
    rename,
    substitute,
)
from feinsum.raising.nest import PARENT, POSITION, Tree, TreeLevel, make_refusal

Terms: TypeAlias = dict[Expression, int]
"""The coefficient of each term of a sum; a number is a coefficient of the term 1."""


@dataclass(frozen=True)
class TreeLoop:
    """A loop over the children of a node.

    Attributes:
        pointers: the array with the bounds.
        parent: the position of the parent node in this array.
        position: the position of a child in the arrays of its level, as an expression
            of the iname.
        scalars: temporaries that hold the bounds, or the index of the parent or of a
            child.
    """

    iname: str
    pointers: str
    parent: Expression
    position: Expression
    scalars: frozenset[str]


def check_compressed(insn: lp.InstructionBase, levels: Mapping[str, TreeLoop]) -> None:
    """Refuse an instruction in a loop over compressed rows, or that loads its bounds.

    Args:
        insn: the instruction to check.
        levels: the result of :func:`find_compressed_levels`.

    Raises:
        NotAnEinsumError: with the rule ``compressed``.
    """
    inames = collect_loops(insn)
    written = set(insn.assignee_var_names())
    for name, level in levels.items():
        if name in inames:
            reason = (
                f"iname {name!r} runs from {level.pointers}[{level.parent}] to the "
                "entry after it, over a row of a compressed sparse array; no einsum "
                "of a sparse operand has been found in it"
            )
        elif written & level.scalars:
            reason = (
                f"it is a bound or a coordinate of {name!r}, which runs over rows of a "
                "compressed sparse array"
            )
        else:
            continue
        raise make_refusal(insn.id, "compressed", reason)


def is_same_position(first: Expression, second: Expression) -> bool:
    """Return whether two expressions are the same position, independent of spelling.

    >>> from pymbolic import parse
    >>> is_same_position(parse("ptr[i] + k + 1"), parse("1 + k + ptr[i]"))
    True
    """
    return first == second or _collect_terms(first) == _collect_terms(second)


def find_compressed_levels(kernel: lp.LoopKernel) -> dict[str, TreeLoop]:
    """Return the loops over compressed rows, by iname.

    >>> import numpy as np
    >>> ints = [lp.GlobalArg(name, np.int32, shape="n") for name in ("ptr", "idx")]
    >>> unit = lp.make_kernel(
    ...     ["[n] -> {[i]: 0<=i<n-1}", "[a,b] -> {[k]: a<=k<b}"],
    ...     '''
    ...     for i
    ...         <> a = ptr[i] {id=a}
    ...         <> b = ptr[i+1] {id=b}
    ...         y[i] = sum(k, 1.0*idx[k]) {dep=a:b}
    ...     end
    ...     ''',
    ...     [*ints, lp.GlobalArg("y", np.float64, shape="n"), ...],
    ...     lang_version=(2018, 2))
    >>> find_compressed_levels(unit.default_entrypoint)["k"].pointers
    'ptr'
    """
    values = _find_scalars(kernel)
    if not any(map(list_subscripts, values.values())):
        return {}
    levels = {}
    for domain in kernel.domains:
        if values.keys().isdisjoint(domain.get_var_names(isl.dim_type.param)):
            continue
        for iname in domain.get_var_names(isl.dim_type.set):
            if level := _read_level(iname, kernel, values):
                coordinates = _find_coordinates(level, values)
                levels[iname] = replace(level, scalars=level.scalars | coordinates)
    return levels


def _find_coordinates(level: TreeLoop, values: Mapping[str, Expression]) -> set[str]:
    """Return the scalars with an entry at the position of the parent or a child."""
    positions = [_collect_terms(level.parent), _collect_terms(level.position)]
    return {
        name
        for name, value in values.items()
        if _get_entry_array(value) is not None
        and _collect_terms(_resolve_scalars(value.index_tuple[0], values)) in positions
    }


def _find_scalars(kernel: lp.LoopKernel) -> dict[str, Expression]:
    """Return the private scalars that one instruction assigns unconditionally."""
    scalars = {n for n, t in kernel.temporary_variables.items() if not t.shape}
    values = {}
    for name, ids in find_writers(kernel).items():
        insn = kernel.id_to_insn[ids[0]]
        is_plain = isinstance(insn, lp.Assignment) and not insn.predicates
        if len(ids) == 1 and is_plain and name in scalars:
            values[name] = insn.expression
    return values


def _read_level(
    iname: str, kernel: lp.LoopKernel, values: Mapping[str, Expression]
) -> TreeLoop | None:
    try:
        bounds = kernel.get_iname_bounds(iname)
        size = pw_aff_to_expr(bounds.size, int_ok=True)
        lower = pw_aff_to_expr(bounds.lower_bound_pw_aff, int_ok=True)
    except (lp.LoopyError, isl.Error, NotImplementedError):
        return None
    scalars = frozenset(_list_names([size, lower]) & values.keys())
    if not scalars:
        return None
    terms = _collect_terms(_resolve_scalars(size, values))
    ends = [x for x, n in terms.items() if n == 1]
    begins = [x for x, n in terms.items() if n == -1]
    # the extent ptr[x + 1] - ptr[x] has exactly these two terms
    if len(terms) != 2 or len(ends) != 1 or len(begins) != 1:
        return None
    end, begin = ends[0], begins[0]
    pointers = _get_entry_array(begin)
    if pointers is None or pointers != _get_entry_array(end):
        return None
    # the bounds are adjacent entries: ptr[x] and ptr[x + 1]
    step = Counter(_collect_terms(end.index_tuple[0]))
    step.subtract(_collect_terms(begin.index_tuple[0]))
    if {x: n for x, n in step.items() if n} != {1: 1}:
        return None
    # it runs over positions; or it counts from 0, and subscripts add the first position
    start = _collect_terms(_resolve_scalars(lower, values))
    if start not in ({begin: 1}, {}):
        return None
    position = p.Variable(iname) if start else p.Sum((begin, p.Variable(iname)))
    # scalars from which the bounds are computed serve the loop, too
    used = scalars | (_list_names([values[s] for s in scalars]) & values.keys())
    return TreeLoop(iname, pointers, begin.index_tuple[0], position, used)


def _resolve_scalars(
    expression: Expression, values: Mapping[str, Expression]
) -> Expression:
    """Substitute the values of scalars into an expression, repeatedly."""
    # at most once per scalar, since `i = i + 1` would never be resolved
    for _ in range(len(values)):
        if not _list_names([expression]) & values.keys():
            break
        expression = substitute(expression, values)
    return expression


def _list_names(expressions: Iterable[Expression]) -> set[str]:
    return {name for e in expressions for name in get_dependencies(e)}


def _get_entry_array(expression: Expression) -> str | None:
    """Return the one-dimensional array whose entry an expression is, if any."""
    is_entry = isinstance(expression, p.Subscript) and len(expression.index_tuple) == 1
    return str(expression.aggregate.name) if is_entry else None


def _collect_terms(expression: Expression) -> Terms:
    """Return the terms of an expression, with their coefficients.

    >>> from pymbolic import parse
    >>> terms = _collect_terms(parse("2*a[i] - 3 + i - 1"))
    >>> sorted((str(term), n) for term, n in terms.items())
    [('1', -4), ('a[i]', 2), ('i', 1)]
    """
    polynomial = expand_polynomial(expression, has_entries=True) or {}
    return {make_product(factors): n for factors, n in polynomial.items()}


def list_subscripts(expression: Expression) -> list[p.Subscript]:
    """Return all subscript expressions, also nested ones, outer ones first."""
    return collect_nodes(expression, p.Subscript)


INDEX, ENTRY = "@", "#"
"""Suffixes of the name of a loop over nodes: the index of a node, and its position."""


def make_tree_refusal(insn: lp.InstructionBase, reason: str) -> NotAnEinsumError:
    """Refuse an instruction in loops over nodes."""
    return make_refusal(insn.id, "compressed", reason)


@dataclass(frozen=True)
class Nodes:
    """The loops over the nodes of a tree, from its root.

    Attributes:
        inames: the inames of the loops; only the first may have known bounds.
        levels: the loops over children of nodes.
        arrays: for each loop, the array with the indices of its nodes.
        is_root_stored: whether the first loop has known bounds, but runs over stored
            nodes rather than over all values of an index.
    """

    inames: tuple[str, ...]
    levels: Mapping[str, TreeLoop]
    arrays: Mapping[str, str]
    is_root_stored: bool = False

    @classmethod
    def of(
        cls,
        insn: lp.InstructionBase,
        inames: Collection[str],
        levels: Mapping[str, TreeLoop],
        values: Sequence[Expression],
    ) -> Nodes:
        """Find the nodes that an instruction visits.

        Args:
            insn: the instruction.
            inames: the inames of its loops and sums.
            levels: the tree loops of the kernel.
            values: the expressions that it reads, and its assignee.

        Raises:
            NotAnEinsumError: if its loops do not form a path, or if one has two arrays
                of indices.
        """
        path = _find_path(insn, inames, levels)
        nodes = cls(path, levels, {})
        if path[0] not in levels:
            # The first loop runs over all rows in CSR, but over stored nodes in DCSR.
            # Subscripts show the difference: with stored nodes, dense arrays are read
            # only through an array of indices.
            stored = replace(nodes, is_root_stored=True).with_arrays(insn, values)
            nodes = replace(nodes, is_root_stored=stored.is_root_explained(values))
        return nodes.with_arrays(insn, values)

    def with_arrays(
        self, insn: lp.InstructionBase, values: Sequence[Expression]
    ) -> Nodes:
        """Find the arrays with the indices of nodes.

        Raises:
            NotAnEinsumError: if there are two for one loop.
        """
        arrays_of = _find_index_arrays(map(self._mark_positions, values))
        for iname, arrays in arrays_of.items():
            if len(arrays) > 1 and iname in self.levels:
                raise make_tree_refusal(
                    insn, f"nodes of {iname!r} have indices in {sorted(arrays)}"
                )
        # the smallest name, since the order of a set differs between processes
        return replace(self, arrays={i: min(arrays) for i, arrays in arrays_of.items()})

    def is_root_explained(self, values: Iterable[Expression]) -> bool:
        """Return whether values depend on the root only by the indices of its nodes."""
        root = self.inames[0]
        marked = [
            _mark_indices(self._mark_positions(value), self.arrays) for value in values
        ]
        names = {name for value in marked for name in get_dependencies(value)}
        return root in self.arrays and not names & {root, root + ENTRY}

    @property
    def stored(self) -> frozenset[str]:
        """The loops whose values are positions of nodes."""
        root = {self.inames[0]} if self.is_root_stored else set[str]()
        return frozenset(self.levels.keys() & {*self.inames} | root)

    def _mark_positions(self, expression: Expression) -> Expression:
        """Mark positions of nodes in subscripts."""
        positions = {
            i: self.levels[i].position for i in self.inames if i in self.levels
        }
        if self.is_root_stored:
            positions[self.inames[0]] = p.Variable(self.inames[0])
        return _Placed(positions)(expression)

    def marked(self, insn: lp.InstructionBase, expression: Expression) -> Expression:
        """Mark the positions and the indices of nodes.

        Raises:
            NotAnEinsumError: if the expression depends on a loop over nodes in any
                other way.
        """
        marked = _mark_indices(self._mark_positions(expression), self.arrays)
        if wrong := sorted(get_dependencies(marked) & self.stored):
            raise make_tree_refusal(
                insn,
                f"{expression} depends on {wrong[0]!r}, which runs over nodes of a "
                "tree, other than by an array of indices or of values",
            )
        return marked

    def by_index(self, marked: Expression) -> Expression:
        """Replace index marks by the loops over nodes."""
        return rename(marked, {i + INDEX: i for i in self.inames})

    def drop_marks(self, marked: Expression) -> Expression:
        """Replace all marks, of positions and of indices, by the loops."""
        names = {i + mark: i for i in self.inames for mark in (INDEX, ENTRY)}
        return rename(marked, names)

    def in_kernel(self, marked: Expression) -> Expression:
        """Replace marks of positions and of indices by the kernel's expressions."""
        points = {i + INDEX: self.point(i) for i in self.inames}
        positions = {i + ENTRY: p.Variable(i) for i in self.inames}
        return substitute(marked, {**points, **positions})

    def point(self, index: str) -> Expression:
        """Return the value of an index in terms of the position of its node."""
        array, position = self.arrays.get(index), p.Variable(index)
        return p.Variable(array)[position] if array else position

    def marks(self, marked: Expression, mark: str) -> set[str]:
        """Return the loops whose mark of this kind occurs in an expression."""
        names = get_dependencies(marked)
        return {i for i in self.inames if i + mark in names}

    def is_leaf_of(self, array: str, marked: Expression) -> bool:
        """Return whether an expression is an array's entry at a leaf."""
        leaf = p.Variable(self.inames[-1] + ENTRY)
        return bool(marked == p.Variable(array)[leaf])

    def tree(self, root_end: Expression, loads: Iterable[str]) -> Tree:
        """Describe how the kernel stores the tree.

        Args:
            root_end: the end of the first loop, if its bounds are known.
            loads: see :class:`Tree`.
        """
        tree_levels = []
        for iname in self.inames:
            level, array = self.levels.get(iname), self.arrays.get(iname)
            begin, end = (0, root_end) if level is None else _get_children(level)
            is_all = level is None and not self.is_root_stored
            index = (
                POSITION if is_all else p.Variable(array)[POSITION] if array else None
            )
            tree_levels.append(TreeLevel(begin, end, index))
        return Tree(self.inames, tuple(tree_levels), tuple(sorted(loads)))


def _get_children(level: TreeLoop) -> tuple[Expression, Expression]:
    above = level.parent if isinstance(level.parent, int) else PARENT
    pointers = p.Variable(level.pointers)
    return pointers[above], pointers[above + 1]


def _find_path(
    insn: lp.InstructionBase, inames: Collection[str], levels: Mapping[str, TreeLoop]
) -> tuple[str, ...]:
    """Order an instruction's loops over nodes as a path from the root."""
    own_levels = {i: levels[i] for i in sorted(inames) if i in levels}
    above = {
        i: _find_parent_loop(insn, level, inames, levels)
        for i, level in own_levels.items()
    }
    # a path has one leaf; two leaves mean two trees
    leaves = own_levels.keys() - {*above.values()}
    path: list[str] = []
    iname = min(leaves, default=None)
    while iname is not None and iname not in path:
        path.insert(0, iname)
        iname = above.get(iname)
    if len(leaves) != 1 or not own_levels.keys() <= {*path}:
        raise make_tree_refusal(
            insn,
            f"its loops {sorted(own_levels)} over nodes do not form a path of a tree",
        )
    return tuple(path)


def _find_parent_loop(
    insn: lp.InstructionBase,
    level: TreeLoop,
    inames: Collection[str],
    levels: Mapping[str, TreeLoop],
) -> str | None:
    """Return the loop over the parents of a level's nodes; None at a root."""
    if isinstance(level.parent, int):
        return None
    for iname in sorted(inames):
        position = levels[iname].position if iname in levels else p.Variable(iname)
        if is_same_position(position, level.parent):
            return iname
    raise make_tree_refusal(
        insn,
        f"{level.iname!r} runs over children of {level.parent}, which is not a node of "
        "its loops",
    )


def _find_index_arrays(placed: Iterable[Expression]) -> dict[str, set[str]]:
    """Find, for each loop, the arrays whose entries at its nodes are subscripts."""
    arrays_of: dict[str, set[str]] = {}
    for expression in placed:
        for outer in list_subscripts(expression):
            for inner in (
                x for axis in outer.index_tuple for x in list_subscripts(axis)
            ):
                position, *later_axes = inner.index_tuple
                name = getattr(position, "name", "")
                if name.endswith(ENTRY) and not later_axes:
                    arrays = arrays_of.setdefault(name.removesuffix(ENTRY), set())
                    arrays.add(inner.aggregate.name)
    return arrays_of


def _mark_indices(placed: Expression, arrays: Mapping[str, str]) -> Expression:
    """Replace entries that are indices of nodes by marks."""
    marks = {
        p.Variable(array)[p.Variable(iname + ENTRY)]: p.Variable(iname + INDEX)
        for iname, array in arrays.items()
    }
    return SubstitutionMapper(marks.get)(placed)


class _Placed(IdentityMapper):  # type: ignore[misc]
    """Marks positions of nodes in subscripts."""

    def __init__(self, positions: Mapping[str, Expression]) -> None:
        super().__init__()
        self.positions = positions

    def map_subscript(self, expr: p.Subscript, /) -> Expression:
        axes = tuple(map(self._mark_axis, expr.index_tuple))
        return p.Subscript(expr.aggregate, axes[0] if len(axes) == 1 else axes)

    def _mark_axis(self, axis: Expression) -> Expression:
        for name, position in self.positions.items():
            if is_same_position(axis, position):
                return p.Variable(name + ENTRY)
        return self.rec(axis)
