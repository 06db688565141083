"""Recognizing a given einsum in a kernel.

Source: paper, section 7 (algorithm 4, ``IdentifyAsEinsum``).
"""

from __future__ import annotations

import loopy as lp

from feinsum.canonical import canonicalize
from feinsum.errors import NotAnEinsumError
from feinsum.ir import LONG_EXTENT, BatchedEinsum
from feinsum.raising.kernel import raise_kernel
from feinsum.raising.nest import LoopNest, RaisedKernel, RaisedNest
from feinsum.words import counted


def identify_as_einsum(
    t_unit: lp.TranslationUnit,
    reference: BatchedEinsum,
    *,
    instructions: str | None = None,
    kernel_name: str | None = None,
    long_extent: int = LONG_EXTENT,
) -> tuple[lp.TranslationUnit, LoopNest]:
    """Read a kernel as ``reference``.

    Returns:
        The kernel with its operands behind substitution rules, and the nest in the
        names of ``reference``: the iname of each index, the rule of each operand, the
        instruction of each row.

    Raises:
        NotAnEinsumError: if the kernel is not an einsum, or is another one (rule
            ``other-einsum``).

    Source: paper, section 7, algorithm 4.

    >>> from feinsum.codegen import generate_loopy
    >>> from feinsum.ir import array, einsum
    >>> ours = einsum("ij,j->i", array("A", (3, 4)), array("x", 4))
    >>> theirs = generate_loopy(einsum("q,pq->p", array("v", 4), array("M", (3, 4))))
    >>> _, nest = identify_as_einsum(theirs, ours)
    >>> nest.inames["i"], nest.rules["A"]
    ('p', 'M_rule')
    """
    raised = raise_kernel(
        t_unit,
        instructions=instructions,
        kernel_name=kernel_name,
        long_extent=long_extent,
    )
    found = single_nest(raised)
    form = canonicalize(reference)
    if form.einsum != found.form.einsum:
        raise NotAnEinsumError(
            f"the kernel is the einsum {found.form.text!r}, not {form.text!r}",
            rule="other-einsum",
            instructions=found.instructions,
        )
    return raised.t_unit, found.canonical_nest.relabeled(form.relabeling.inverse())


def single_nest(raised: RaisedKernel) -> RaisedNest:
    """The only nest of a kernel.

    Raises:
        NotAnEinsumError: if any instruction was refused (with its rule), or if
            there are several nests (rule ``several-nests``).
    """
    for refused in raised.refused:
        raise NotAnEinsumError(
            refused.reason, rule=refused.rule, instructions=refused.instructions
        )
    if len(raised.raised) != 1:
        parts = [" ".join(nest.instructions) for nest in raised.raised]
        raise NotAnEinsumError(
            f"kernel {raised.kernel_name!r} has {counted(len(parts), 'einsum')} "
            f"({parts}), "
            "expected one; instructions= chooses among them",
            rule="several-nests",
            instructions=tuple(i for nest in raised.raised for i in nest.instructions),
        )
    return raised.raised[0]
