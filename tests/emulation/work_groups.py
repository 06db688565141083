"""Scheduled kernels, executed work-group by work-group, to define what barriers mean.

This is for small instances. All work-items of a group execute the schedule together,
each statement for all of them at once, and every memory access is recorded. This
detects races: two accesses to one entry of an array, at least one of them a write,
without a barrier between. On a device, lucky timing can hide them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, product
from math import prod
from typing import Any, NamedTuple

import islpy as isl
import loopy as lp
import numpy as np
from loopy.kernel.data import AddressSpace, GroupInameTag, LocalInameTag
from loopy.schedule import (
    Barrier,
    CallKernel,
    EnterLoop,
    LeaveLoop,
    RunInstruction,
    get_insn_ids_for_block_at,
    linearize,
)
from loopy.symbolic import constraint_to_cond_expr, get_dependencies
from pymbolic import primitives as p
from pymbolic.mapper.evaluator import EvaluationMapper, evaluate
from pytools.tag import Tag

from feinsum.errors import MeasurementError
from feinsum.targets.cuda.gemm import multiply_reference
from feinsum.targets.cuda.products import MatrixProduct
from feinsum.targets.layout import get_entry_kernel
from feinsum.targets.protocol import Array
from feinsum.transforms.primitives.copy_async import (
    AsyncCopy,
    AwaitGroups,
    CloseGroup,
)
from feinsum.transforms.primitives.load_blocks import N_BLOCKS, SIDE, BlockLoad
from feinsum.transforms.primitives.multiply_fragments import (
    COLUMNS,
    ROWS,
    WARP,
    FragmentProduct,
)
from feinsum.transforms.primitives.store_pair import PairStore
from feinsum.words import describe_type, format_count

__all__ = ["Execution", "Race", "execute_groups", "scheduled"]

NOBODY, SEVERAL = -1, -2


class Race(NamedTuple):
    """A race between two work-items, or two groups.

    Attributes:
        array: its name; empty for what not all work-items reach.
        entry: counted in C order.
        kind: ``write-write``, ``read-write``, ``group-write`` for two groups at an
            entry of global memory, ``barrier``, or ``warp`` for a product of a warp.
    """

    array: str
    entry: int
    kind: str


@dataclass(frozen=True)
class Execution:
    """The result of an execution.

    Attributes:
        outputs: final contents of the arguments, by name.
        races: empty if the barriers suffice.
    """

    outputs: Mapping[str, Array]
    races: tuple[Race, ...]


def scheduled(t_unit: Any) -> Any:
    """The unit with its statements and barriers in order, as code has them."""
    return linearize(lp.preprocess_program(t_unit.copy(target=lp.OpenCLTarget())))


def execute_groups(t_unit: Any, arguments: Mapping[str, Any]) -> Execution:
    """Execute a kernel, and look for races.

    Args:
        t_unit: a typed unit; one from :func:`scheduled` is used as it is.
        arguments: all arrays, including those that are written, and all scalars.

    Raises:
        MeasurementError: if a work-item exceeds the bounds of an array, or for a
            statement other than arithmetic.

    >>> unit = lp.make_kernel("{[i]: 0<=i<5}", "y[i] = 2*x[i]",
    ...     [lp.GlobalArg("x,y", np.float64, shape=5)], lang_version=(2018, 2))
    >>> unit = lp.split_iname(unit, "i", 2, outer_tag="g.0", inner_tag="l.0")
    >>> execution = execute_groups(unit, {"x": np.arange(5.0), "y": np.zeros(5)})
    >>> execution.outputs["y"], execution.races
    (array([0., 2., 4., 6., 8.]), ())
    """
    if get_entry_kernel(t_unit).linearization is None:
        t_unit = scheduled(t_unit)
    run = _Run(get_entry_kernel(t_unit), t_unit.callables_table, arguments)
    run.execute()
    outputs = {name: run.memory[name] for name in arguments if name in run.memory}
    return Execution(outputs, tuple(dict.fromkeys(run.races)))


class _Notes:
    """Who has read and written the entries of one array since the last barrier."""

    def __init__(self, size: int) -> None:
        self.writer = np.full(size, NOBODY)
        self.reader = np.full(size, NOBODY)

    def forget(self) -> None:
        self.writer[:] = self.reader[:] = NOBODY

    def reads(self, places: Array, who: Array) -> Array:
        """The places that somebody else has written."""
        others = self.writer[places]
        known = self.reader[places]
        self.reader[places] = np.where((known == NOBODY) | (known == who), who, SEVERAL)
        # Of several that read one place now, the last one is noted: more than one.
        _, at, counts = np.unique(places, return_inverse=True, return_counts=True)
        self.reader[places[counts[at] > 1]] = SEVERAL
        found: Array = places[(others != NOBODY) & (others != who)]
        return found

    def writes(self, places: Array, who: Array) -> tuple[Array, Array]:
        """The places that somebody else has written, and those read."""
        _, at, counts = np.unique(places, return_inverse=True, return_counts=True)
        others, readers = self.writer[places], self.reader[places]
        written = ((others != NOBODY) & (others != who)) | (counts[at] > 1)
        read = (readers != NOBODY) & (readers != who)
        self.writer[places] = who
        return places[written], places[read]


@dataclass
class _Run:
    """The state of an execution."""

    kernel: Any
    callables: Any
    given: Mapping[str, Any]
    races: list[Race] = field(default_factory=list)

    def __post_init__(self) -> None:
        kernel = self.kernel
        self.scalars = {
            arg.name: arg.dtype.numpy_dtype.type(self.given[arg.name])
            for arg in kernel.args
            if isinstance(arg, lp.ValueArg)
        }
        self.sizes = {
            name: int(value)
            for name, value in self.scalars.items()
            if isinstance(value, np.integer)
        }
        self.memory: dict[str, Array] = {
            arg.name: np.array(self.given[arg.name], order="C")
            for arg in kernel.args
            if not isinstance(arg, lp.ValueArg)
        }
        for name in self.temporaries(AddressSpace.GLOBAL):
            self.memory[name] = self.fresh(name)
        self.by_group = {name: _Notes(x.size) for name, x in self.memory.items()}

    def temporaries(self, space: Any) -> Iterator[str]:
        for name, array in self.kernel.temporary_variables.items():
            if array.base_storage is not None:
                raise MeasurementError(
                    f"{name!r} shares its storage with others, which is not supported"
                )
            if array.address_space == space:
                yield name

    def fresh(self, name: str, *before: int) -> Array:
        """A temporary that nobody has written yet."""
        variable = self.kernel.temporary_variables[name]
        if variable.initializer is not None:
            values = np.asarray(variable.initializer)
            return np.array(np.broadcast_to(values, (*before, *values.shape)))
        shape = [int(evaluate(n, self.sizes)) for n in variable.shape]
        dtype = variable.dtype.numpy_dtype
        poison = np.nan if dtype.kind in "fc" else 0
        return np.full((*before, *shape), poison, dtype)

    def execute(self) -> None:
        """Every launch for every group."""
        for at, item in enumerate(self.kernel.linearization):
            if not isinstance(item, CallKernel):
                continue
            ids = get_insn_ids_for_block_at(self.kernel.linearization, at)
            grid, block = (
                [int(evaluate(n, self.sizes)) for n in part]
                for part in self.kernel.get_grid_sizes_for_insn_ids_as_exprs(
                    ids, self.callables
                )
            )
            for notes in self.by_group.values():
                notes.forget()
            for number, group in enumerate(product(*map(range, grid))):
                _Group(self, number, group, block).execute(at + 1)

    def domain(self, inames: frozenset[str]) -> Any:
        """The domain of some inames, with those that bound them, at the given sizes."""
        domain, seen = self.kernel.get_inames_domain(inames), frozenset[str]()
        while seen != (inames := inames | {*domain.get_var_names(isl.dim_type.set)}):
            seen, domain = inames, self.kernel.get_inames_domain(inames)
        domain = domain.to_set()
        for k, name in enumerate(domain.get_var_names(isl.dim_type.param)):
            if name in self.sizes:
                domain = domain.fix_val(isl.dim_type.param, k, self.sizes[name])
        return domain

    def conditions(
        self, inames: frozenset[str], known: frozenset[str]
    ) -> list[list[Any]]:
        """Alternatives of conditions for values of inames to be in the domain.

        Args:
            known: inames that have values; for the others there is one.
        """
        if inames not in self._conditions:
            domain = self.domain(inames)
            names = domain.get_var_names(isl.dim_type.set)
            for k in reversed(range(len(names))):
                if names[k] not in known:
                    domain = domain.project_out(isl.dim_type.set, k, 1)
            pieces = domain.compute_divs().coalesce().get_basic_sets()
            self._conditions[inames] = [
                [constraint_to_cond_expr(c) for c in piece.get_constraints()]
                for piece in pieces
            ]
        return self._conditions[inames]

    def names_in_conditions(self, inames: frozenset[str]) -> frozenset[str]:
        """The variables in conditions that are there already."""
        if inames not in self._names:
            self._names[inames] = frozenset(
                name
                for alternative in self._conditions[inames]
                for condition in alternative
                for name in get_dependencies(condition)
            )
        return self._names[inames]

    @cached_property
    def _names(self) -> dict[frozenset[str], frozenset[str]]:
        return {}

    @cached_property
    def _conditions(self) -> dict[frozenset[str], list[list[Any]]]:
        return {}

    def span(self, iname: str) -> range:
        """All values of an iname, at whatever values of the others."""
        if iname not in self._spans:
            domain = self.domain(frozenset({iname}))
            k = domain.find_dim_by_name(isl.dim_type.set, iname)
            low, high = domain.dim_min_val(k), domain.dim_max_val(k)
            is_empty = domain.is_empty()
            self._spans[iname] = (
                range(0) if is_empty else range(low.to_python(), high.to_python() + 1)
            )
        return self._spans[iname]

    @cached_property
    def _spans(self) -> dict[str, range]:
        return {}


class _Group:
    """One work-group of one launch."""

    def __init__(
        self, run: _Run, number: int, group: Sequence[int], block: Sequence[int]
    ) -> None:
        self.run, self.number = run, number
        self.n_items = prod(block)
        self.values: dict[str, Any] = {}
        self._inside: dict[frozenset[str], Array] = {}
        # axis 0 varies fastest, as on a GPU: a warp is WARP neighbours in this order
        local = np.unravel_index(np.arange(self.n_items), tuple(block)[::-1] or (1,))
        for name, iname in run.kernel.inames.items():
            for tag in iname.tags:  # also of axes that only other launches have
                if isinstance(tag, GroupInameTag) and tag.axis < len(group):
                    self.values[name] = np.full(self.n_items, group[tag.axis])
                if isinstance(tag, LocalInameTag) and tag.axis < len(local):
                    self.values[name] = local[::-1][tag.axis]
        shared, private = AddressSpace.LOCAL, AddressSpace.PRIVATE
        self.shared = {n: run.fresh(n) for n in run.temporaries(shared)}
        self.private = {n: run.fresh(n, self.n_items) for n in run.temporaries(private)}
        arrays = {**run.memory, **self.shared}
        self.notes = {name: _Notes(array.size) for name, array in arrays.items()}
        self.copies: list[list[tuple[str, Array, Array, Array]]] = [[]]
        self.mask = np.ones(self.n_items, bool)
        self.loops: frozenset[str] = frozenset()

    def execute(self, at: int) -> int:
        """The schedule from a place to the end of its loop, or of the launch."""
        schedule = self.run.kernel.linearization
        while True:
            item = schedule[at]
            if isinstance(item, EnterLoop):
                at = self._loop(item.iname, at)
            elif isinstance(item, RunInstruction):
                self._statement(self.run.kernel.id_to_insn[item.insn_id])
            elif isinstance(item, Barrier):
                self._barrier()
            else:  # the end of a loop, or of the launch
                assert isinstance(item, LeaveLoop) or at > 0
                return at
            at += 1

    def _loop(self, iname: str, at: int) -> int:
        outside, around = self.mask, self.loops
        self.loops = around | {iname}
        end = _end_of_loop(self.run.kernel.linearization, at)
        for value in self.run.span(iname):
            self.values[iname] = np.full(self.n_items, value)
            self._inside.clear()
            self.mask = outside & self._is_inside(self.loops)
            if self.mask.any():
                self.execute(at + 1)
        self.values.pop(iname, None)
        self._inside.clear()
        self.mask, self.loops = outside, around
        return end

    def _is_inside(self, inames: frozenset[str]) -> Array:
        """Which work-items are within the loops at the values that they have.

        Statements that follow each other within the same loops share the answer, unless
        a domain depends on what they compute.
        """
        if inames in self._inside:
            return self._inside[inames]
        value_of = _Values(self, self.mask)
        found = np.zeros(self.n_items, bool)
        known = frozenset(self.values)
        for alternative in self.run.conditions(inames, known):
            holds = np.ones(self.n_items, bool)
            for condition in alternative:
                holds &= np.broadcast_to(value_of(condition), self.n_items)
            found |= holds
        if self.run.names_in_conditions(inames) <= known | self.run.scalars.keys():
            self._inside[inames] = found
        return found

    def _barrier(self) -> None:
        if not self.mask.all():
            self.run.races.append(Race("", 0, "barrier"))
        for notes in self.notes.values():
            notes.forget()

    def _statement(self, insn: Any) -> None:
        if isinstance(insn, lp.NoOpInstruction):
            return
        done = [tag for tag in insn.tags if type(tag) in self.meanings]
        if done:
            self.meanings[type(done[0])](insn, done[0])
            return
        if not isinstance(insn, lp.Assignment):
            raise MeasurementError(
                f"the statement {insn.id!r} is {describe_type(insn)}; expected an "
                "assignment"
            )
        mask = self.mask & self._is_inside(frozenset(insn.within_inames))
        for predicate in insn.predicates:
            mask = mask & _Values(self, mask)(predicate)
        if not mask.any():
            return
        values = np.broadcast_to(_Values(self, mask)(insn.expression), self.n_items)
        name, indices = insn.assignee_name, ()
        if isinstance(insn.assignee, p.Subscript):
            indices = insn.assignee.index_tuple
        self.write(name, indices, values, mask)

    @cached_property
    def meanings(self) -> dict[type[Tag], Callable[[Any, Any], None]]:
        """Interpreters of C statements, by their tags."""
        return {
            FragmentProduct: self._multiply,
            BlockLoad: self._load_blocks,
            MatrixProduct: self._multiply_matrices,
            PairStore: self._store_pair,
            AsyncCopy: self._copy,
            CloseGroup: self._close_group,
            AwaitGroups: self._await_groups,
        }

    def _copy(self, insn: Any, copy: AsyncCopy) -> None:
        """Written when it is awaited; until then nobody else may touch the place."""
        mask = self.mask & self._is_inside(frozenset(insn.within_inames))
        who = np.flatnonzero(mask)
        (tile, at), (array, begin) = copy.target, copy.source
        n_inside = self.private[copy.inside][who]
        for lane in range(copy.lanes):
            inside = lane < n_inside
            places = self.private[at][who] + lane
            origins = np.where(inside, self.private[begin][who] + lane, 0)
            self._check_places(array, origins, self.array(array).size)
            values = np.where(inside, self.array(array).reshape(-1)[origins], 0)
            self._note_groups(array, origins, is_written=False)
            self._note_copies(tile, places, who)
            self.copies[-1].append((tile, places, who, values))

    def _store_pair(self, insn: Any, store: PairStore) -> None:
        """Each lane as a statement of its own would."""
        (target, at), (source, begin) = store.target, store.source
        mask = self.mask & self._is_inside(frozenset(insn.within_inames))
        mask = mask & (self.private[store.inside] != 0)
        held = self.private[source].reshape(self.n_items, -1)
        items, size = np.arange(self.n_items), self.array(target).size
        for lane in range(2):
            places = np.where(mask, self.private[at] + lane, 0)
            self._check_places(target, places, size)
            values = held[items, self.private[begin] + lane]
            self._put(target, places, values, mask)

    def _check_places(self, name: str, places: Array, size: int) -> None:
        if ((places < 0) | (places >= size)).any():
            raise MeasurementError(
                f"{name!r} has {format_count(size, 'entry')}, a work-item moves others"
            )

    def _note_copies(self, tile: str, places: Array, who: Array) -> None:
        for kind, found in zip(
            ("write-write", "read-write"),
            self.notes[tile].writes(places, who),
            strict=True,
        ):
            self._note(tile, found, kind)

    def _close_group(self, _insn: Any, _group: CloseGroup) -> None:
        self.copies.append([])

    def _await_groups(self, _insn: Any, groups: AwaitGroups) -> None:
        """Wait for the closed groups; the last one in the list is open."""
        n_done = max(len(self.copies) - 1 - groups.n_left, 0)
        for tile, places, who, values in chain.from_iterable(self.copies[:n_done]):
            self._note_copies(tile, places, who)
            self.shared[tile].reshape(-1)[places] = values
        del self.copies[:n_done]

    def _multiply_matrices(self, _insn: Any, product: MatrixProduct) -> None:
        """What the library makes of whole arrays."""
        names = product.right, product.left, product.result
        arrays = (self.array(name).reshape(-1) for name in names)
        multiply_reference(product.gemm(self.run.sizes), *arrays)

    def _multiply(self, _insn: Any, product: FragmentProduct) -> None:
        """Every warp multiplies what its lanes hold; see its primitive for who has
        what.
        """
        if self.n_items % WARP or not self.mask.all():
            self.run.races.append(Race("", 0, "warp"))
            return
        depth = product.depth
        if self.private[product.left[0]].dtype.itemsize == 2:
            self._multiply_halves(product)
            return
        left = self._held(*product.left, (depth // 4, 2))
        right = self._held(*product.right, (depth // 4,))
        sums = self._held(*product.sums, (2, 2))
        whole = np.einsum("wgtqh->whgqt", left).reshape(-1, ROWS, depth) @ np.einsum(
            "wgtq->wqtg", right
        ).reshape(-1, depth, COLUMNS)
        pieces = whole.reshape(-1, 2, COLUMNS, 4, 2)
        sums += np.einsum("whgtc->wgthc", pieces)
        self._hold(*product.sums, sums)

    def _multiply_halves(self, product: FragmentProduct) -> None:
        left = self._held(*product.left, (2, 2, 2)).astype(np.float32)
        right = self._held(*product.right, (2, 2)).astype(np.float32)
        sums = self._held(*product.sums, (2, 2))
        n_terms = product.depth
        whole = np.einsum("wgtqhe->whgqte", left).reshape(-1, ROWS, n_terms) @ (
            np.einsum("wgtqe->wqteg", right).reshape(-1, n_terms, COLUMNS)
        )
        pieces = whole.reshape(-1, 2, COLUMNS, 4, 2)
        sums += np.einsum("whgtc->wgthc", pieces)
        self._hold(*product.sums, sums)

    def _load_blocks(self, _insn: Any, load: BlockLoad) -> None:
        """Every lane reads a row of 8 entries, and gets parts of four others."""
        if self.n_items % WARP or not self.mask.all():
            self.run.races.append(Race("", 0, "warp"))
            return
        tile, at = load.source
        first, entries = self.private[at], self.array(tile).reshape(-1)
        # rows are whole vectors of 16 bytes
        self._check_places(tile, np.where(first % SIDE, -1, first), entries.size)
        blocks = np.empty((self.n_items, SIDE), entries.dtype)
        for k in range(SIDE):
            found = self.notes[tile].reads(first + k, np.arange(self.n_items))
            self._note(tile, found, "read-write")
            blocks[:, k] = entries[first + k]
        blocks = blocks.reshape(-1, N_BLOCKS, SIDE, SIDE)
        if load.is_transposed:
            blocks = blocks.swapaxes(2, 3)
        pairs = blocks.reshape(-1, N_BLOCKS, SIDE, 4, 2)
        self._hold(*load.target, np.einsum("wkgte->wgtke", pairs))

    def _held(self, name: str, place: str, shape: tuple[int, ...]) -> Array:
        """Entries of a private array: warps, lanes as 8 times 4, then ``shape``."""
        at = int(self.private[place][0])
        held = self.private[name].reshape(self.n_items, -1)[:, at : at + prod(shape)]
        return held.reshape(-1, COLUMNS, 4, *shape)

    def _hold(self, name: str, place: str, values: Array) -> None:
        at, flat = int(self.private[place][0]), values.reshape(self.n_items, -1)
        held = self.private[name].reshape(self.n_items, -1)
        held[:, at : at + flat.shape[1]] = flat

    def read(self, name: str, indices: Sequence[Any], mask: Array) -> Array:
        """The values that all work-items read; masked ones read anything."""
        array = self.array(name)
        places = self._places(name, indices, mask)
        if name not in self.private:
            who = np.flatnonzero(mask)
            found = self.notes[name].reads(places[mask], who)
            self._note(name, found, "read-write")
            self._note_groups(name, places[mask], is_written=False)
        return array.reshape(-1)[places]

    def write(
        self, name: str, indices: Sequence[Any], values: Array, mask: Array
    ) -> None:
        self._put(name, self._places(name, indices, mask), values, mask)

    def _put(self, name: str, places: Array, values: Array, mask: Array) -> None:
        """Write at places in C order."""
        places = places[mask]
        if name not in self.private:
            written, read = self.notes[name].writes(places, np.flatnonzero(mask))
            self._note(name, written, "write-write")
            self._note(name, read, "read-write")
            self._note_groups(name, places, is_written=True)
        self.array(name).reshape(-1)[places] = values[mask]

    def array(self, name: str) -> Array:
        for room in (self.private, self.shared, self.run.memory):
            if name in room:
                return room[name]
        raise MeasurementError(f"the kernel has no array {name!r}")

    def _places(self, name: str, indices: Sequence[Any], mask: Array) -> Array:
        """The entry of each work-item, in C order."""
        value_of = _Values(self, mask)
        points = [np.broadcast_to(value_of(i), self.n_items) for i in indices]
        array = self.array(name)
        shape = array.shape
        if name in self.private:
            points = [np.arange(self.n_items), *points]
        if not shape:
            return np.zeros(self.n_items, int)
        for axis, (point, extent) in enumerate(zip(points, shape, strict=True)):
            outside = mask & ((point < 0) | (point >= extent))
            if outside.any():
                worst = int(point[outside][0])
                raise MeasurementError(
                    f"{name!r} has extent {extent} on axis {axis}, but a work-item "
                    "accesses "
                    f"{worst}"
                )
        return np.ravel_multi_index(
            [np.where(mask, point, 0) for point in points], shape
        )

    def _note(self, name: str, places: Array, kind: str) -> None:
        self.run.races += [Race(name, int(place), kind) for place in places[:1]]

    def _note_groups(self, name: str, places: Array, *, is_written: bool) -> None:
        """Groups never wait for each other within a launch."""
        notes = self.run.by_group.get(name)
        if notes is None:
            return
        unique = np.unique(places)
        who = np.full(unique.shape, self.number)
        if is_written:
            for found in notes.writes(unique, who):
                self._note(name, found, "group-write")
        else:
            self._note(name, notes.reads(unique, who), "group-write")


def _end_of_loop(schedule: Sequence[Any], at: int) -> int:
    depth = 0
    for place in range(at, len(schedule)):
        depth += isinstance(schedule[place], EnterLoop)
        depth -= isinstance(schedule[place], LeaveLoop)
        if depth == 0:
            return place
    raise AssertionError("a loop has no end")


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    name: getattr(np, {"pow": "power", "fmin": "minimum", "fmax": "maximum",
                       "atan2": "arctan2", "acos": "arccos", "asin": "arcsin",
                       "atan": "arctan"}.get(name, name))
    for name in ("abs", "fabs", "sqrt", "exp", "log", "log10", "sin", "cos", "tan",
                 "sinh", "cosh", "tanh", "floor", "ceil", "pow", "fmin", "fmax",
                 "atan2", "acos", "asin", "atan", "real", "imag", "conj", "isnan")
}  # fmt: skip


class _Values(EvaluationMapper):  # type: ignore[misc]
    """The value of an expression for every work-item."""

    def __init__(self, group: _Group, mask: Array) -> None:
        super().__init__()
        self.group, self.mask = group, mask

    def map_variable(self, expr: Any) -> Any:
        name = expr.name
        if name in self.group.values:
            return self.group.values[name]
        if name in self.group.run.scalars:
            return self.group.run.scalars[name]
        return self.group.read(name, (), self.mask)

    map_tagged_variable = map_variable

    def map_subscript(self, expr: Any) -> Any:
        return self.group.read(expr.aggregate.name, expr.index_tuple, self.mask)

    def map_if(self, expr: Any) -> Any:
        holds = np.broadcast_to(self.rec(expr.condition), self.group.n_items)
        then, other = (
            _Values(self.group, self.mask & where)(part)
            for part, where in ((expr.then, holds), (expr.else_, ~holds))
        )
        return np.where(holds, then, other)

    def map_comparison(self, expr: Any) -> Any:
        operators = {"==": np.equal, "!=": np.not_equal, "<": np.less,
                     "<=": np.less_equal, ">": np.greater,
                     ">=": np.greater_equal}  # fmt: skip
        return operators[expr.operator](self.rec(expr.left), self.rec(expr.right))

    def map_logical_and(self, expr: Any) -> Any:
        return np.all(self._together(expr), axis=0)

    def map_logical_or(self, expr: Any) -> Any:
        return np.any(self._together(expr), axis=0)

    def _together(self, expr: Any) -> list[Any]:
        n_items = self.group.n_items
        return [np.broadcast_to(self.rec(child), n_items) for child in expr.children]

    def map_logical_not(self, expr: Any) -> Any:
        return np.logical_not(self.rec(expr.child))

    def map_min(self, expr: Any) -> Any:
        return np.minimum.reduce(self._together(expr))

    def map_max(self, expr: Any) -> Any:
        return np.maximum.reduce(self._together(expr))

    def map_type_cast(self, expr: Any) -> Any:
        return np.asarray(self.rec(expr.child)).astype(expr.type.numpy_dtype)

    def map_call(self, expr: Any) -> Any:
        name = getattr(expr.function, "name", str(expr.function))
        parameters = [self.rec(x) for x in expr.parameters]
        if name in ("min", "max"):
            return (np.minimum if name == "min" else np.maximum)(*parameters)
        if name not in _FUNCTIONS:
            raise MeasurementError(f"the function {name!r} is not supported here")
        return _FUNCTIONS[name](*parameters)
