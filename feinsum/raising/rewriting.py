"""A kernel while it is rewritten: its reads and writes, and their order.

Each rewrite makes a new :class:`RewrittenKernel`, so that cached properties stay valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import islpy as isl
import loopy as lp
import numpy as np
from loopy.symbolic import (
    SubstitutionRuleExpander,
    get_dependencies,
)
from pymbolic import primitives as p

from feinsum.dtypes import is_inexact
from feinsum.raising.dependences import get_storage, never_meet
from feinsum.raising.expressions import (
    Expression,
    Subscripts,
    collect_loops,
    find_writers,
    get_subscripts,
    list_accesses_of,
)


@dataclass(frozen=True)
class RewrittenKernel:
    """A kernel that is rewritten, and properties that rewrites preserve.

    Attributes:
        dtypes: dtypes of arrays and scalars, as far as they are known.
        exact: instructions whose value has the dtype of their assignee.
        summable: these, and instructions for which the same holds once literals outside
            of sums get the dtype of the assignee. Their literals must not be moved into
            a sum.
    """

    kernel: lp.LoopKernel
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    exact: frozenset[str] = frozenset()
    summable: frozenset[str] = frozenset()

    @cached_property
    def _expand(self) -> SubstitutionRuleExpander:
        return SubstitutionRuleExpander(self.kernel.substitutions)

    @cached_property
    def before(self) -> Mapping[str, frozenset[str]]:
        """For each instruction, all instructions that must run before it."""
        dependencies = self.kernel.recursive_insn_dep_map()
        return {name: frozenset(ids) for name, ids in dependencies.items()}

    @cached_property
    def touching(self) -> Mapping[str, frozenset[str]]:
        """For each variable, the instructions that read or write it."""
        touching: dict[str, set[str]] = {}
        for insn in self.kernel.instructions:
            for name in self.reads[insn.id] | frozenset(insn.assignee_var_names()):
                touching.setdefault(name, set()).add(insn.id)
        return {name: frozenset(ids) for name, ids in touching.items()}

    @cached_property
    def reads(self) -> Mapping[str, frozenset[str]]:
        """For each instruction, all names that it reads, with rules expanded."""
        reads = {}
        for insn in self.kernel.instructions:
            expanded = insn.with_transformed_expressions(self._expand)
            reads[insn.id] = frozenset(expanded.read_dependency_names())
        return reads

    @cached_property
    def writers(self) -> Mapping[str, tuple[str, ...]]:
        """For each variable, the instructions that assign to it."""
        return find_writers(self.kernel)

    @cached_property
    def in_rules(self) -> frozenset[str]:
        """All names in substitution rules, which are not rewritten."""
        rules = self.kernel.substitutions.values()
        return frozenset[str]().union(*(get_dependencies(r.expression) for r in rules))

    @cached_property
    def privates(self) -> frozenset[str]:
        """Temporaries that only plain assignments of this kernel access.

        In plain C, temporaries in local memory are variables of the function: TSFC
        declares them so.
        """
        # on a GPU, in contrast, a work-group shares its local memory
        is_serial = isinstance(self.kernel.target, lp.CTarget)
        shared = {
            name
            for insn in self.kernel.instructions
            if not is_plain(insn)
            for name in self.reads[insn.id] | frozenset(insn.assignee_var_names())
        }
        return frozenset(
            name
            for name, temporary in self.kernel.temporary_variables.items()
            if temporary.initializer is None
            # arrays with one base_storage overlap: a write to either changes the other
            and temporary.base_storage is None
            and not temporary.read_only
            and (is_serial or temporary.address_space != lp.AddressSpace.LOCAL)
            and isinstance(temporary.shape, tuple)
            and name not in shared | self.in_rules
        )

    def accesses(self, insn_id: str, name: str) -> list[Subscripts]:
        """Return the subscripts of all accesses of a name, with rules expanded."""
        insn = self.kernel.id_to_insn[insn_id]
        return [
            get_subscripts(access)
            for e in (insn.assignee, self._expand(insn.expression))
            for access in list_accesses_of(e, name)
        ]

    def never_meet(self, first: str, second: str, name: str) -> bool:
        """Return whether two instructions have no entry of an array in common."""
        insns = [self.kernel.id_to_insn[i] for i in (first, second)]
        mine, theirs = (
            self.accesses(insn.id, name) if is_plain(insn) else [] for insn in insns
        )
        return bool(mine and theirs) and never_meet(self.kernel, name, mine, theirs)

    def find_writers_in_storage(self, names: Iterable[str]) -> frozenset[str]:
        """Return the instructions that assign to the memory of ``names``."""
        memory = get_storage(self.kernel, names)
        return frozenset(
            insn_id
            for name, ids in self.writers.items()
            if get_storage(self.kernel, [name]) & memory
            for insn_id in ids
        )

    def parameters(self) -> frozenset[str]:
        """Return all names in the bounds of loops."""
        domains = self.kernel.domains
        names = (d.get_var_names(isl.dim_type.param) for d in domains)
        return frozenset[str]().union(*names)

    def with_instructions(
        self, changed: Mapping[str, lp.InstructionBase | None], **more: Any
    ) -> RewrittenKernel:
        """Replace instructions, or remove those mapped to None.

        Instructions that depended on a removed one get the dependencies of that one.
        """
        removed = {name for name, insn in changed.items() if insn is None}
        gone = {
            name: self.kernel.id_to_insn[name].depends_on - removed for name in removed
        }
        instructions = [
            _redirect_dependencies(changed.get(insn.id, insn), gone, self.before)
            for insn in self.kernel.instructions
            if insn.id not in removed
        ]
        return replace(self, kernel=self.kernel.copy(instructions=instructions, **more))

    def names(self, expression: Expression) -> frozenset[str]:
        """Return all names that an expression reads, with rules expanded."""
        return frozenset(get_dependencies(self._expand(expression)))

    def is_inexact(self, expression: Expression) -> bool:
        """Return whether an expression reads a floating point number."""
        dtypes = [self.dtypes.get(name) for name in self.names(expression)]
        return any(dtype is not None and is_inexact(dtype) for dtype in dtypes)

    def with_own_sums(self, insn_id: str) -> RewrittenKernel:
        """Give an instruction's sums inames that no other instruction has."""
        kernel = self.kernel
        sums = kernel.id_to_insn[insn_id].reduction_inames()
        used = collect_loops(*(i for i in kernel.instructions if i.id != insn_id))
        shared = sorted(sums & used)
        if not shared:
            return self
        fresh = kernel.get_var_name_generator()
        news = [str(fresh(iname)) for iname in shared]
        kernel = lp.duplicate_inames(kernel, shared, f"id:{insn_id}", news)
        return replace(self, kernel=kernel)


def is_plain(insn: lp.InstructionBase) -> bool:
    """Return whether an instruction is an unconditional, non-atomic assignment."""
    return (
        isinstance(insn, lp.Assignment)
        and not insn.predicates
        and not insn.atomicity
        and isinstance(insn.assignee, (p.Variable, p.Subscript))
    )


def without_no_ops(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """Remove instructions that do nothing."""
    idle = {insn.id: None for insn in kernel.instructions if is_no_op(insn)}
    return RewrittenKernel(kernel).with_instructions(idle).kernel if idle else kernel


def is_no_op(insn: lp.InstructionBase) -> bool:
    """Return whether an instruction does nothing, such as one that marks a position."""
    is_empty = isinstance(insn, lp.CInstruction) and not insn.code.strip(" \t\n;")
    return is_empty or isinstance(insn, lp.NoOpInstruction)


def _redirect_dependencies(
    insn: lp.InstructionBase,
    gone: Mapping[str, frozenset[str]],
    before: Mapping[str, frozenset[str]],
) -> lp.InstructionBase:
    """Replace dependencies on removed instructions by the dependencies of these."""
    missing = insn.depends_on & gone.keys()
    if not missing:
        return insn
    # the closure, since a removed instruction may depend on another removed one
    needed = frozenset[str]().union(*(before[name] for name in missing)) - gone.keys()
    # Loopy refuses ids of instructions that do not exist
    silent = frozenset(x for x in insn.no_sync_with if x[0] not in gone)
    return insn.copy(
        depends_on=(insn.depends_on - missing) | needed, no_sync_with=silent
    )
