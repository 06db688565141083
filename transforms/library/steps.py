"""A nest of many operands as several nests, and the recipe of each of them.

For ``ij,jk,kl->il`` and a step that multiplies B and C, :func:`split_nest` makes a
separate device kernel for the step, with the product in global memory::

    for i, l:  out[i,l] = sum((j,k), A[i,j]*B[j,k]*C[k,l])

    for j, l:  product[j,l] = sum(k, B[j,k]*C[k,l])       by one recipe
    (wait for all work-groups)
    for i, l:  out[i,l] = sum(j, A[i,j]*product[j,l])     by another recipe

The recipe of a step is the cheapest one, or a named one. Which one is the cheapest
depends on the cost models, which later versions of this package may correct. So a fact
names the recipes that were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import islpy as isl
import loopy as lp
import numpy as np
from constantdict import constantdict
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import FeinsumError, TransformError
from feinsum.ir import BatchedEinsum, IndexList, Operand
from feinsum.machine import TYPICAL, MachineModel
from feinsum.raising import LoopNest, names_of, points_of, value_of
from feinsum.records import ParameterValue, TransformSpec
from feinsum.transforms.cost import rank_recipes
from feinsum.transforms.primitives.loops import make_domain
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import (
    NestSteps,
    Parameters,
    Transform,
    check_spec,
    find_transform,
    with_newest_version,
)

if TYPE_CHECKING:  # that module needs this one
    from feinsum.transforms.library.contraction_path import PathStep

Families: TypeAlias = tuple[Transform, ...]

BEST = "best"
"""The value of the parameter ``steps`` for the cheapest recipes."""


def list_recipes(
    steps: ParameterValue,
    einsums: Sequence[BatchedEinsum],
    families: Families,
    machine: MachineModel,
) -> list[TransformSpec]:
    """Return the recipes of all steps.

    Args:
        steps: names of the recipes, or :data:`BEST` for the cheapest ones.
        einsums: the einsum of each step.
        families: the families to choose from.
        machine: the machine of the costs. It must depend on parameters of the recipe
            alone, so that the recipe means one kernel everywhere.

    Raises:
        InvalidRecordError: if a name is not that of a recipe.
    """
    if isinstance(steps, tuple):
        return [TransformSpec.parse(str(step)) for step in steps]
    return [find_cheapest_recipe(einsum, families, machine) for einsum in einsums]


@lru_cache(maxsize=1024)
def find_cheapest_recipe(
    einsum: BatchedEinsum, families: Families, machine: MachineModel
) -> TransformSpec:
    """Return the cheapest recipe of a step."""
    return rank_recipes(einsum, {}, families, machine)[0].spec


def apply_recipes(
    t_unit: lp.TranslationUnit,
    nests: Sequence[LoopNest],
    recipes: Sequence[TransformSpec],
) -> lp.TranslationUnit:
    """Apply a recipe to each nest."""
    for nest, spec in zip(nests, recipes, strict=True):
        family = find_transform(spec.name, spec.version)
        t_unit = family.apply(t_unit, nest, spec.parameters)
    return t_unit


def predict_steps_s(
    list_steps: Callable[[BatchedEinsum, Parameters], NestSteps],
    einsum: BatchedEinsum,
    parameters: Parameters,
    machine: MachineModel,
) -> float:
    """Add up the predicted seconds of all nests of a family, one after the other."""
    total = 0.0
    steps = list_steps(einsum, parameters)
    for spec, step in zip(steps.recipes(), steps.einsums, strict=True):
        # older versions have no costs of their own
        version = with_newest_version(spec).version
        cost = find_transform(spec.name, version).cost
        assert cost is not None
        total += cost(step, spec.parameters, machine)
    return total


def find_misfit(
    steps: ParameterValue, einsums: Sequence[BatchedEinsum], families: Families
) -> str | None:
    """Explain why named recipes do not fit the steps; None if they do.

    Args:
        steps: names of the recipes, or :data:`BEST`.
        einsums: the einsum of each step.
        families: allowed families of their recipes, in any version.
    """
    if not isinstance(steps, tuple):
        return (
            None if steps == BEST else f"steps={steps!r} is neither {BEST!r} nor names"
        )
    try:
        specs = list_recipes(steps, einsums, families, TYPICAL)
        if len(specs) != len(einsums):
            return f"there are {len(einsums)} steps, and recipes of {len(specs)}"
        names = {family.name for family in families}
        for spec, einsum in zip(specs, einsums, strict=True):
            if spec.name not in names:
                return f"{spec.name} is no family of steps; those are {sorted(names)}"
            check_spec(spec, einsum)
    except FeinsumError as error:
        return f"a step is by no recipe: {error}"
    return None


def split_nest(
    t_unit: lp.TranslationUnit, nest: LoopNest, steps: Sequence[PathStep]
) -> tuple[lp.TranslationUnit, tuple[LoopNest, ...]]:
    """Split steps of a path off a nest; the last nest computes the remainder.

    Products are arrays in global memory. A nest begins when all of the previous one is
    complete. Rows that share both factors share the product.

    Args:
        t_unit: a unit whose kernel has exactly the instructions of the nest.
        nest: the loop nest to split.
        steps: all steps but the last one, each after those whose products it reads.

    Returns:
        The unit, and the nests in their order. Their einsums use the indices of
        ``nest``. The operands of the last nest are in the order of their numbers.

    Raises:
        TransformError: if the kernel does more than this nest, or if an extent is not
            an argument.
    """
    kernel = t_unit[nest.kernel_name]
    if set(kernel.id_to_insn) != set(nest.instructions):
        raise TransformError(
            f"kernel {kernel.name!r} does more than the einsum, for which a path needs "
            "several device kernels; feinsum.retrieve separates such a kernel"
        )
    for index in nest.einsum.indices:
        extent = nest.extent(index)
        # the host allocates global temporaries before any device kernel runs
        if missing := names_of(extent) - kernel.arg_dict.keys():
            raise TransformError(f"the extent {min(missing)} is not an argument")
    splitter = _Splitter(kernel, nest)
    for step in steps:
        splitter.add(step)
    return t_unit.with_kernel(splitter.build()), splitter.nests


@dataclass(frozen=True)
class _Array:
    """An array that a nest reads: its name in einsums and its substitution rule."""

    operand: Operand
    rule: str


class _Splitter:
    """Collects the nests, arrays and statements, one step after the other."""

    def __init__(self, kernel: lp.LoopKernel, nest: LoopNest) -> None:
        self.kernel, self.nest = kernel, nest
        self._nests: list[LoopNest] = []
        self._terms = dict(enumerate(nest.einsum.inputs))
        self._rows = [
            {k: _Array(op, nest.rules[op.name]) for k, op in enumerate(row)}
            for row in nest.einsum.rows
        ]
        self._unused = kernel.get_var_name_generator()
        operand_names = {op.name for op in nest.einsum.operands}
        self._unused.add_names(operand_names, conflicting_ok=True)
        self._unused_ids = kernel.get_instruction_id_generator()
        rows = [kernel.id_to_insn[insn_id] for insn_id in nest.instructions]
        ids = frozenset(nest.instructions)
        self._before = frozenset().union(*(row.depends_on for row in rows)) - ids
        self._statements: list[lp.InstructionBase] = []
        self._arrays: dict[str, lp.TemporaryVariable] = {}
        self._rules: dict[str, lp.SubstitutionRule] = {}
        self._domains: list[isl.BasicSet] = []

    def add(self, step: PathStep) -> None:
        """Add a nest that computes the product of a step for all rows."""
        factors = [tuple(row.pop(k) for k in step.operands) for row in self._rows]
        for number in step.operands:
            del self._terms[number]
        self._terms[step.product] = step.output
        inames = {index: str(self._unused(index)) for index in step.joint}
        loops = tuple(inames[index] for index in step.output)
        products = {
            arrays: self._declare_product(arrays, step.output)
            for arrays in dict.fromkeys(factors)
        }
        statements = [self._make_statement(array, loops) for array in products.values()]
        einsum = BatchedEinsum(
            step.output,
            step.inputs,
            tuple(tuple(array.operand for array in arrays) for arrays in products),
        )
        self._nests.append(
            replace(
                self.nest,
                einsum=einsum,
                points=points_of(inames),
                rules=_collect_rules(products),
                instructions=tuple(statement.id for statement in statements),
                assignees=tuple(statement.assignee for statement in statements),
                scales=(1,) * len(products),
                shifts=(0,) * len(products),
            )
        )
        self._statements += statements
        self._domains += [self._make_domain(inames)] if inames else []
        self._wait_for(statements)
        for row, arrays in zip(self._rows, factors, strict=True):
            row[step.product] = products[arrays]

    @property
    def nests(self) -> tuple[LoopNest, ...]:
        """The nests of the products, then the remainder of the original nest."""
        rows = [tuple(row[k] for k in sorted(row)) for row in self._rows]
        einsum = BatchedEinsum(
            self.nest.einsum.output,
            tuple(self._terms[k] for k in sorted(self._terms)),
            tuple(tuple(array.operand for array in row) for row in rows),
        )
        points = {index: self.nest.points[index] for index in einsum.indices}
        last = replace(
            self.nest,
            einsum=einsum,
            points=constantdict(points),
            rules=_collect_rules(rows),
        )
        return *self._nests, last

    def build(self) -> lp.LoopKernel:
        """Return the kernel with the new nests before the last one."""
        kernel = self.kernel
        # the rows are the last nest, and wait for all products
        rows = [
            insn.copy(depends_on=insn.depends_on | self._before)
            for insn in kernel.instructions
        ]
        return kernel.copy(
            instructions=[*self._statements, *rows],
            temporary_variables={**kernel.temporary_variables, **self._arrays},
            substitutions=constantdict({**kernel.substitutions, **self._rules}),
            domains=[*kernel.domains, *self._domains],
        )

    def _declare_product(
        self, factors: tuple[_Array, ...], output: IndexList
    ) -> _Array:
        """Declare a product of arrays in global memory, and the rule that reads it."""
        name, rule = str(self._unused("product")), str(self._unused("product_rule"))
        dtype = np.dtype(np.result_type(*(array.operand.dtype for array in factors)))
        self._arrays[name] = lp.TemporaryVariable(
            name,
            dtype,
            shape=tuple(self._get_extent(index) for index in output) or (1,),
            address_space=lp.AddressSpace.GLOBAL,
        )
        arguments = tuple(str(self._unused(f"_{index}")) for index in output)
        self._rules[rule] = lp.SubstitutionRule(
            rule, arguments, _make_entry(name, arguments)
        )
        extents = self.nest.einsum.extents
        return _Array(Operand(name, tuple(extents[i] for i in output), dtype), rule)

    def _make_statement(self, array: _Array, loops: Names) -> lp.Assignment:
        """Make the statement that assigns a product; its recipe will set the value."""
        operand = array.operand
        return lp.Assignment(
            _make_entry(operand.name, loops),
            operand.dtype.type(0),
            id=str(self._unused_ids(operand.name)),
            within_inames=frozenset(loops),
            depends_on=self._before,
        )

    def _wait_for(self, statements: Sequence[lp.Assignment]) -> None:
        """Add a barrier, so that all work-groups finish these statements first."""
        ids = frozenset(statement.id for statement in statements)
        barrier = lp.BarrierInstruction(
            id=str(self._unused_ids("wait")),
            depends_on=ids,
            depends_on_is_final=True,
            # a device kernel ends at a global barrier, so no loop may be around it;
            # final, so that Loopy infers none
            within_inames=frozenset(),
            within_inames_is_final=True,
            synchronization_kind="global",
            mem_kind="global",
        )
        self._statements.append(barrier)
        self._before |= {*ids, barrier.id}

    def _get_extent(self, index: str) -> Expression:
        return value_of(self.nest.extent(index))

    def _make_domain(self, inames: dict[str, str]) -> isl.BasicSet:
        bounds = [f"0 <= {x} < {self.nest.extent(i)}" for i, x in inames.items()]
        return make_domain([*inames.values()], *bounds)


def _collect_rules(rows: Iterable[Sequence[_Array]]) -> constantdict[str, str]:
    return constantdict(
        {array.operand.name: array.rule for row in rows for array in row}
    )


def _make_entry(name: str, inames: Names) -> p.Subscript:
    """Subscript a product; a scalar is an array of one entry."""
    return p.Subscript(var(name), tuple(map(var, inames)) or (0,))
