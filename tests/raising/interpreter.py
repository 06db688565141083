"""A reference interpreter of untransformed Loopy kernels: point by point, in numpy.

It shares no code with raising. Loops that instructions have in common are one loop.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import islpy as isl
import loopy as lp
import numpy as np
from pymbolic import parse
from pymbolic.mapper.evaluator import EvaluationMapper, evaluate

__all__ = ["Unschedulable", "run", "run_raised"]

State = dict[str, Any]
Point = dict[str, int]


class Unschedulable(Exception):  # noqa: N818
    """No order of loops runs these instructions, or one reads outside of an array."""


def run(t_unit: lp.TranslationUnit, arrays: Mapping[str, Any]) -> State:
    """The arrays after the kernel."""
    kernel = lp.expand_subst(t_unit).default_entrypoint
    state = _copied(kernel, arrays)
    _run_all(kernel, list(kernel.instructions), state, {})
    return state


def run_raised(t_unit: lp.TranslationUnit, nests: Sequence[Any], arrays: Any) -> State:
    """The arrays after the kernel with every raised nest evaluated as a whole."""
    kernel = lp.expand_subst(t_unit).default_entrypoint
    state = _copied(kernel, arrays)
    of_nest = {i: nest for nest in nests for i in nest.instructions}
    units: dict[object, list[Any]] = {}
    for insn in kernel.instructions:
        nest = of_nest.get(insn.id)
        units.setdefault(id(nest) if nest else insn.id, []).append(insn)
    for unit in _sorted(_joined(list(units.values()), of_nest), kernel):
        nest = of_nest.get(unit[0].id)
        if nest is None:
            _run_all(kernel, unit, state, {})
        else:
            _evaluate_nest(nest, state)
    return state


def _joined(units: list[list[Any]], of_nest: Mapping[str, Any]) -> list[list[Any]]:
    """Instructions of no nest that share loops run together."""
    nests = [unit for unit in units if unit[0].id in of_nest]
    others = [insn for unit in units if unit[0].id not in of_nest for insn in unit]
    return [*nests, *_components(others)]


def _evaluate_nest(nest: Any, state: State) -> None:
    """All values first, and then the stores: no value depends on another one."""
    sizes = {
        name: int(evaluate(parse(size), state) if isinstance(size, str) else size)
        for name, size in nest.nest.sizes.items()
    }
    rows = nest.functional.evaluate(state, sizes)
    axes = [nest.einsum.extents[index] for index in nest.einsum.output]
    shape = tuple(x if isinstance(x, int) else sizes[x.name] for x in axes)
    stores = []
    for k, row in enumerate(rows):
        for at in np.ndindex(*shape):
            point = dict(zip(nest.einsum.output, at, strict=True))
            for name in _names(nest.nest.assignees[k]) - set(state) - set(point):
                point[name] = 0
            scope = _Evaluator(None, state, point)
            value = scope(nest.shift[k]) + scope(nest.scale[k]) * row[at]
            stores.append((nest.nest.assignees[k], value, scope))
    for assignee, value, scope in stores:
        _store(assignee, value, state, scope)


def _copied(kernel: lp.LoopKernel, arrays: Mapping[str, Any]) -> State:
    state = {name: np.array(a) if np.ndim(a) else a for name, a in arrays.items()}
    used = {np.asarray(value).dtype for value in state.values()}
    widest = np.result_type(np.float32, *(d for d in used if d.kind in "fc"))
    for name, temporary in kernel.temporary_variables.items():
        shape = temporary.shape if isinstance(temporary.shape, tuple) else ()
        shape = tuple(int(evaluate(extent, state)) for extent in shape)
        dtype = getattr(temporary.dtype, "numpy_dtype", None)
        state[name] = np.full(shape, np.nan, dtype if _is_inexact(dtype) else widest)
        if temporary.initializer is not None:
            state[name] = temporary.initializer
    return state


def _is_inexact(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "fc"


def _run_all(
    kernel: lp.LoopKernel, insns: list[Any], state: State, point: Point
) -> None:
    for unit in _sorted(_components(insns, set(point)), kernel):
        common = frozenset.intersection(*(i.within_inames for i in unit)) - set(point)
        if not common and len(unit) == 1:
            _run_one(kernel, unit[0], state, point)
        elif not common:
            raise Unschedulable(str(unit))
        else:
            for inner in _points(kernel, _outermost(kernel, common), state, point):
                _run_all(kernel, unit, state, {**point, **inner})


def _outermost(kernel: lp.LoopKernel, loops: frozenset[str]) -> list[str]:
    """Those of some loops that no priority puts inside another one of them."""
    inner = {
        name
        for order in kernel.loop_priority
        for k, name in enumerate(order)
        if loops.intersection(order[:k])
    }
    return sorted(loops - inner)


def _components(insns: list[Any], done: set[str] | None = None) -> list[list[Any]]:
    """Instructions that share a loop which is not running yet."""
    groups: list[tuple[set[str], list[Any]]] = []
    for insn in insns:
        names = set(insn.within_inames) - (done or set())
        met = [group for group in groups if group[0] & names]
        groups = [group for group in groups if not group[0] & names]
        merged = [i for _, members in met for i in members] + [insn]
        groups.append((names.union(*(group[0] for group in met)), merged))
    return [members for _, members in groups]


def _sorted(units: list[list[Any]], kernel: lp.LoopKernel) -> list[list[Any]]:
    """The units in an order of their dependencies, that of the text where free."""
    number = {insn.id: k for k, insn in enumerate(kernel.instructions)}
    left = sorted(units, key=lambda unit: min(number[i.id] for i in unit))
    inside = {i.id for unit in units for i in unit}
    done: set[str] = set()
    order = []
    while left:
        for unit in left:
            own = {i.id for i in unit}
            needed = set().union(*(i.depends_on for i in unit)) & inside
            if needed <= done | own:
                break
        else:
            raise Unschedulable(str(left))
        left.remove(unit)
        order.append(unit)
        done |= own
    return order


def _run_one(kernel: lp.LoopKernel, insn: Any, state: State, point: Point) -> None:
    if isinstance(insn, lp.BarrierInstruction):
        return
    scope = _Evaluator(kernel, state, point)
    if all(scope(predicate) for predicate in insn.predicates):
        _store(insn.assignee, scope(insn.expression), state, scope)


def _store(assignee: Any, value: Any, state: State, scope: Any) -> None:
    name = getattr(getattr(assignee, "aggregate", assignee), "name", None)
    indices = getattr(assignee, "index_tuple", ())
    if not indices and not np.ndim(state[name]):
        state[name] = np.asarray(value, np.asarray(state[name]).dtype)
        return
    state[name][scope.place(name, indices)] = value


def _points(
    kernel: lp.LoopKernel, names: list[str], state: State, point: Point
) -> Iterator[Point]:
    """The integer points of some inames, where others and all sizes are known."""
    domain = kernel.get_inames_domain(frozenset(names))
    domain = isl.Set.from_basic_set(domain) if hasattr(domain, "to_set") else domain
    for name in domain.get_var_names(isl.dim_type.set):
        if name not in names and name not in point:
            place = domain.find_dim_by_name(isl.dim_type.set, name)
            domain = domain.project_out(isl.dim_type.set, place, 1)
    known = {**{k: v for k, v in state.items() if np.ndim(v) == 0}, **point}
    for kind in (isl.dim_type.set, isl.dim_type.param):
        for place, name in enumerate(domain.get_var_names(kind)):
            if name in known and name not in names:
                domain = domain.fix_val(kind, place, int(known[name]))
    order = domain.get_var_names(isl.dim_type.set)
    found: list[Point] = []

    def add(at: Any) -> None:
        values = [
            at.get_coordinate_val(isl.dim_type.set, k).to_python()
            for k in range(len(order))
        ]
        found.append(dict(zip(order, values, strict=True)))

    domain.foreach_point(add)
    found.sort(key=lambda at: [at[name] for name in names])
    yield from ({name: at[name] for name in names} for at in found)


def _names(expression: Any) -> set[str]:
    from loopy.symbolic import get_dependencies

    return set(get_dependencies(expression))


_CALLS = {"fmin": min, "fmax": max, "abs": abs, "conj": np.conj}


class _Evaluator(EvaluationMapper):
    """Evaluates an expression at one point, as C does."""

    def __init__(self, kernel: Any, state: State, point: Point) -> None:
        super().__init__({**state, **point})
        self.kernel, self.state, self.point = kernel, state, point

    def place(self, name: str, indices: Any) -> tuple[int, ...]:
        at = tuple(int(self.rec(index)) for index in indices)
        shape = np.shape(self.state[name])
        if len(at) != len(shape) or not all(
            0 <= i < n for i, n in zip(at, shape, strict=True)
        ):
            raise Unschedulable(f"{name}{at}")
        return at

    def map_subscript(self, expr: Any) -> Any:
        name = expr.aggregate.name
        return self.state[name][self.place(name, expr.index_tuple)]

    map_tagged_variable = EvaluationMapper.map_variable

    def map_call(self, expr: Any) -> Any:
        name = expr.function.name
        arguments = [self.rec(argument) for argument in expr.parameters]
        library = cmath if any(map(np.iscomplexobj, arguments)) else math
        return (_CALLS.get(name) or getattr(library, name))(*arguments)

    def map_if(self, expr: Any) -> Any:
        return self.rec(expr.then if self.rec(expr.condition) else expr.else_)

    def map_reduction(self, expr: Any) -> Any:
        names = sorted(expr.inames)
        values = [
            _Evaluator(self.kernel, self.state, {**self.point, **at})(expr.expr)
            for at in _points(self.kernel, names, self.state, self.point)
        ]
        kind = type(expr.operation).__name__.removesuffix("ReductionOperation")
        match kind:
            case "Sum":
                return sum(values)
            case "Product":
                return math.prod(values)
            case "Max":
                return max(values)
            case "Min":
                return min(values)
        raise Unschedulable(kind)
