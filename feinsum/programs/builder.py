"""The builder of programs in Python, statement by statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from string import ascii_letters
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from feinsum.entry_points import PLANNERS, require_registered
from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir import Extent, IndexList, Operand, array, parse_subscripts
from feinsum.ir.evaluation import check_arrays
from feinsum.ir.numpy_calls import NUMPY, infer_numpy_shape
from feinsum.ir.program import Program
from feinsum.ir.statement import Statement
from feinsum.programs.local import run_program
from feinsum.words import format_count


@dataclass(frozen=True, eq=False)
class Tensor:
    """An array of a program under construction: an input or a result."""

    operand: Operand
    owner: ProgramBuilder

    @property
    def name(self) -> str:
        return self.operand.name

    @property
    def shape(self) -> tuple[Extent, ...]:
        return self.operand.shape

    @property
    def rank(self) -> int:
        return self.operand.rank

    def __repr__(self) -> str:
        return f"<{self.operand}>"


class ProgramBuilder:
    """Collects statements; :meth:`build` makes the :class:`Program`.

    Methods take arrays as a :class:`Tensor` of this program, or as an operand from
    :func:`feinsum.array`, which becomes an input.

    >>> p = program()
    >>> Q, K, V = (array(name, (8, 16)) for name in "QKV")
    >>> weights = p.softmax(p.einsum("sd,td->st", Q, K), axis=1)
    >>> p.output(p.einsum("st,td->sd", weights, V))
    <r5[8,16]:<f8>
    >>> [statement.reduction for statement in p.build().statements[:2]]
    ['sum', 'max']
    """

    def __init__(self) -> None:
        self._inputs: list[Operand] = []
        self._statements: list[Statement] = []
        self._outputs: list[str] = []
        self._tensors: dict[str, Tensor] = {}

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The inputs so far."""
        return tuple(self._inputs)

    def is_output(self, tensor: Tensor) -> bool:
        """Return whether a result is marked as an output."""
        return tensor.name in self._outputs

    def input(
        self,
        name: str,
        shape: Extent | str | Sequence[Extent | str],
        dtype: DTypeLike = np.float64,
    ) -> Tensor:
        """Add an input; see :func:`feinsum.array`."""
        return self._tensor_of(array(name, shape, dtype))

    def einsum(
        self,
        subscripts: str,
        *operands: Tensor | Operand,
        body: str = "",
        reduction: str = "sum",
        name: str = "",
    ) -> Tensor:
        """Reduce ``body`` with ``reduction`` over the indices missing from the result.

        Args:
            subscripts: as for :func:`numpy.einsum`, or with words.
            operands: tensors of this program, or inputs.
            body: an expression over ``x0``, ``x1``, ... and the indices; by default the
                product of all operands.
            reduction: ``sum``, ``prod``, ``max``, ``min``, ``any``, ``all``, or an
                expression over ``a`` and ``b``.
            name: name of the result.

        Raises:
            ProgramError: if subscripts, operands, body or reduction do not fit.

        >>> p = program()
        >>> p.einsum("ik,kj->ij", array("D", (3, 3)), array("D", (3, 3)),
        ...          body="x0 + x1", reduction="min", name="two_steps")
        <two_steps[3,3]:<f8>
        """
        tensors = [self._tensor_of(operand) for operand in operands]
        try:
            inputs, output = parse_subscripts(subscripts, [x.rank for x in tensors])
        except InvalidEinsumError as error:
            raise ProgramError(str(error), rules=("term",)) from None
        return self._add(inputs, output, tensors, body, reduction, name)

    def map(self, body: str, *operands: Tensor | Operand, name: str = "") -> Tensor:
        """Apply a function elementwise, with axes aligned as in numpy.

        >>> p = program()
        >>> p.map("max(x0 + x1, 0.0)", array("X", (3, 4)), array("b", 4))
        <r0[3,4]:<f8>
        """
        tensors = [self._tensor_of(operand) for operand in operands]
        indices = _indices(max((x.rank for x in tensors), default=0))
        inputs = [indices[len(indices) - x.rank :] for x in tensors]
        return self._add(inputs, indices, tensors, body, "sum", name)

    def reduce(
        self,
        reduction: str,
        operand: Tensor | Operand,
        axis: int | Sequence[int],
        body: str = "",
        name: str = "",
    ) -> Tensor:
        """Reduce an array over some of its axes.

        >>> p = program()
        >>> p.reduce("max", array("X", (3, 4)), axis=1)
        <r0[3]:<f8>
        """
        tensor = self._tensor_of(operand)
        indices = _indices(tensor.rank)
        output = _without(indices, axis, tensor)
        return self._add([indices], output, [tensor], body, reduction, name)

    def numpy(self, body: str, *operands: Tensor | Operand, name: str = "") -> Tensor:
        """Let numpy compute a result as a whole.

        Args:
            body: a call of :mod:`feinsum.ir.numpy_calls`, or a subscript.
            operands: tensors of this program, or inputs.
            name: name of the result.

        >>> p = program()
        >>> p.numpy("reshape(x0, (2, -1))", p.numpy("x0[:, 1:]", array("X", (4, 4))))
        <r1[2,6]:<f8>
        """
        tensors = [self._tensor_of(operand) for operand in operands]
        rank = len(infer_numpy_shape(body, [x.shape for x in tensors]))
        # every axis has an index of its own, because numpy computes whole arrays
        indices = iter(_indices(rank + sum(x.rank for x in tensors)))
        output = tuple(islice(indices, rank))
        inputs = [tuple(islice(indices, x.rank)) for x in tensors]
        return self._add(inputs, output, tensors, body, NUMPY, name)

    def along(
        self,
        body: str,
        operand: Tensor | Operand,
        reduced: Tensor | Operand,
        axis: int | Sequence[int],
        name: str = "",
    ) -> Tensor:
        """Combine an array with one that lacks some of its axes.

        >>> p = program()
        >>> X = p.input("X", (3, 4))
        >>> p.along("x0 - x1", X, p.reduce("max", X, axis=0), axis=0)
        <r1[3,4]:<f8>
        """
        tensor, reduced_tensor = self._tensor_of(operand), self._tensor_of(reduced)
        indices = _indices(tensor.rank)
        inputs = [indices, _without(indices, axis, tensor)]
        return self._add(inputs, indices, [tensor, reduced_tensor], body, "sum", name)

    def softmax(
        self, operand: Tensor | Operand, axis: int | str = -1, name: str = ""
    ) -> Tensor:
        """Return the softmax along an axis, scaled so that no exponential overflows.

        Args:
            operand: a tensor of this program, or an input.
            axis: a number, or an index of the statement that computed the operand.
            name: name of the result.

        >>> p = program()
        >>> _ = p.softmax(array("X", (1, 2)), name="Y")
        >>> p.run(X=np.array([[1000.0, 1000.0]]))["Y"].tolist()
        [[0.5, 0.5]]
        """
        tensor = self._tensor_of(operand)
        number = self._axis_number(tensor, axis) if isinstance(axis, str) else axis
        # subtracted, because exp of a large score would overflow
        maximum = self.reduce("max", tensor, number)
        powers = self.along("exp(x0 - x1)", tensor, maximum, number)
        total = self.reduce("sum", powers, number)
        return self.along("x0 / x1", powers, total, number, name)

    def output(self, tensor: Tensor) -> Tensor:
        """Mark a result as an output.

        Raises:
            ProgramError: if it is not the result of a statement.
        """
        self._tensor_of(tensor)
        if all(tensor.name != statement.result for statement in self._statements):
            raise ProgramError(
                f"{tensor.name!r} is an input; an output is the result of a statement",
                rules=("dataflow",),
            )
        if tensor.name not in self._outputs:
            self._outputs.append(tensor.name)
        return tensor

    def build(self) -> Program:
        """Build the program.

        Its outputs are the marked results, or all results that no statement reads.

        Raises:
            ProgramError: if it is ill-formed.
        """
        read = {name for statement in self._statements for name in statement.operands}
        unread = [
            statement.result
            for statement in self._statements
            if statement.result not in read
        ]
        # without marked outputs, results that no statement reads are returned
        outputs = tuple(self._outputs or unread)
        return Program(tuple(self._inputs), tuple(self._statements), outputs)

    def run(
        self, *, plan: Any = None, engine: str = "local", on: Any = None, **arrays: Any
    ) -> Mapping[str, Any]:
        """Compute the outputs by name, for inputs given by name.

        Args:
            plan: a plan, or a number of processes to plan for; by default everything is
                computed here, stage by stage.
            engine: the engine that runs the plan; see
                :meth:`feinsum.distributed.ProgramPlan.prepare`.
            on: what the engine runs on, such as a communicator.
            arrays: an array for each input, by name, with its shape and dtype.

        Raises:
            ProgramError: if an input is missing, or has the wrong shape or dtype; if
                the plan is of another program.
            PlanError: if the engine cannot run the plan.

        >>> p = program()
        >>> _ = p.einsum("ij,jk->ik", array("A", (4, 4)), array("B", (4, 4)), name="C")
        >>> p.run(A=np.eye(4), B=np.eye(4), plan=2)["C"].sum()
        np.float64(4.0)
        """
        built = self.build()
        if plan is None and engine == "local" and on is None:
            return run_program(built, arrays)
        # recognized by a method, because plans are in a higher layer
        if not hasattr(plan, "prepare"):
            if isinstance(plan, bool) or not isinstance(plan, int):
                raise ProgramError(
                    f"plan is {plan!r:.80}; expected the result of plan(), or a number "
                    f"of processes, for the engine {engine}",
                    rules=("plan",),
                )
            _, sizes = check_arrays(built, arrays)
            plan = self.plan(plan, sizes=sizes)
        if plan.program != built:
            raise ProgramError(
                "the plan is of another program; plan this one", rules=("plan",)
            )
        results: Mapping[str, Any] = plan.prepare(engine, on).run(arrays).results
        return results

    def plan(
        self,
        processes: int,
        *,
        sizes: Mapping[str, int] | None = None,
        memory: int | str | None = None,
        ranks_per_host: Any = None,
        starts: Mapping[str, Any] | None = None,
        results: Mapping[str, Any] | None = None,
    ) -> Any:
        """Plan which process computes which part, so that the slowest finishes first.

        Returns:
            A :class:`feinsum.distributed.ProgramPlan`; see
            :func:`feinsum.distributed.plan_program`.
        """
        return require_registered(PLANNERS, "program")(
            self.build(),
            processes,
            sizes=sizes,
            memory=memory,
            ranks_per_host=ranks_per_host,
            starts=starts,
            results=results,
        )

    def _add(
        self,
        inputs: Sequence[IndexList],
        output: IndexList,
        tensors: Sequence[Tensor],
        body: str,
        reduction: str,
        name: str,
    ) -> Tensor:
        result = name or self._fresh_name()
        if result in self._tensors:
            raise ProgramError(f"an array {result!r} already exists", rules=("name",))
        names = tuple(x.name for x in tensors)
        statement = Statement(result, output, tuple(inputs), names, body, reduction)
        operands = {x.name: x.operand for x in tensors}
        # checked alone, so that an error is raised by the line that causes it
        single = Program(tuple(operands.values()), (statement,), (result,))
        self._statements.append(statement)
        tensor = self._tensors[result] = Tensor(single.arrays[result], self)
        return tensor

    def _tensor_of(self, value: Tensor | Operand) -> Tensor:
        if isinstance(value, Tensor) and value.owner is self:
            return value
        if isinstance(value, Tensor):
            raise ProgramError(f"{value!r} belongs to another program", rules=("name",))
        if not isinstance(value, Operand):
            raise ProgramError(
                f"expected a tensor of this program or feinsum.array(...), got "
                f"{type(value).__name__}; pass numeric arrays to run()",
                rules=("name",),
            )
        tensor = self._tensors.get(value.name)
        if tensor is None:
            self._inputs.append(value)
            tensor = self._tensors[value.name] = Tensor(value, self)
        # one name is one array, as everywhere in feinsum
        if tensor.operand != value:
            raise ProgramError(
                f"two arrays are named {value.name!r}: {tensor.operand} and {value}",
                rules=("name",),
            )
        return tensor

    def _axis_number(self, tensor: Tensor, index: str) -> int:
        """Return the axis of a result for an index name of its statement."""
        for statement in self._statements:
            if statement.result == tensor.name and index in statement.output:
                return statement.output.index(index)
        raise ProgramError(
            f"{tensor!r} has no axis {index!r}; give its number", rules=("term",)
        )

    def _fresh_name(self) -> str:
        k = len(self._statements)
        while f"r{k}" in self._tensors:
            k += 1
        return f"r{k}"


def program() -> ProgramBuilder:
    """Create a builder for a program of einsums.

    >>> p = program()
    >>> gram = p.einsum("ki,kj->ij", array("X", (5, 2)), array("X", (5, 2)))
    >>> p.run(X=np.ones((5, 2)))["r0"].tolist()
    [[5.0, 5.0], [5.0, 5.0]]
    """
    return ProgramBuilder()


def _indices(rank: int) -> IndexList:
    return tuple(ascii_letters[k] if k < 52 else f"i{k}" for k in range(rank))


def _without(
    indices: IndexList, axis: int | Sequence[int], tensor: Tensor
) -> IndexList:
    removed = set()
    for number in [axis] if isinstance(axis, int) else axis:
        if not -tensor.rank <= number < tensor.rank:
            raise ProgramError(
                f"{tensor!r} has {format_count(tensor.rank, 'axis')}, but no "
                f"axis {number}",
                rules=("term",),
            )
        removed.add(number % tensor.rank)
    return tuple(index for k, index in enumerate(indices) if k not in removed)
