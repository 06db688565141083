"""Primitives: the code that each makes is on record, and computes the same.

A golden file holds the loop domains, rules and instructions after a primitive,
and the OpenCL code that Loopy generates from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import islpy as isl
import loopy as lp
import numpy as np
import pytest
from pymbolic import var

from feinsum import array, batched_einsum, einsum
from feinsum.ir import BatchedEinsum
from feinsum.transforms.primitives import (
    NestWriter,
    Schedule,
    begin,
    even_block,
    factor_domains,
    hoist_inames,
    join_domains,
    merge_operands,
    peel_remainder,
    separate_inames,
    split,
    stage_accumulator,
    stage_operand,
    vectorize_last_axis,
)
from feinsum.transforms.primitives.vector_store import is_contiguous
from tests.transforms.support import LOOPY_WARNINGS, Case, generated, opencl_code

pytestmark = LOOPY_WARNINGS

DOUBLE = np.dtype("float64")
N_RAGGED = 13
SEPARATE = (
    "[N] -> { [e] : 0 <= e < N }",
    "[e] -> { [i] : 0 <= i < 3 }",
    "{ [j] : 0 <= j < 4 }",
)

u, v = array("u", ("N", 4)), array("v", ("N", 4))
M = array("M", (3, 4))
APPLY = einsum("ij,ej->ei", M, u)
APPLY_TWO = batched_einsum("ij,ej->ei", [[M, u], [M, v]])
MASS = einsum("ij,e,ej->ei", M, array("J", "N"), u)
MASS_TWO = batched_einsum("ij,e,ej->ei", [[M, array("J", "N"), x] for x in (u, v)])
PRODUCT = einsum("ij,jk->ik", array("A", ("N", 5)), array("B", (5, "N")))
WIDE = einsum("ij,jk->ik", array("A", ("N", 5)), array("B", (5, 8)))
SQUARE = einsum("ij,ji->ij", array("A", ("N", "N")), array("A", ("N", "N")))
SUMS = einsum("ij->i", array("A", ("N", 4)))


@dataclass
class Steps:
    """A kernel and what has been done to it."""

    case: Case
    schedule: Schedule

    def __init__(self, e: BatchedEinsum) -> None:
        self.case = generated(e)
        self.schedule = begin(self.case.t_unit, self.case.nest)

    def then(self, primitive, *arguments, **options):
        """Apply a primitive; what it returns besides the schedule."""
        done = primitive(self.schedule, *arguments, **options)
        self.schedule, *rest = done if isinstance(done, tuple) else (done,)
        return rest[0] if rest else None

    def tag(self, **tags):
        self.schedule = self.schedule.with_unit(
            lp.tag_inames(self.schedule.t_unit, tags)
        )

    @property
    def text(self) -> str:
        kernel = self.schedule.kernel
        parts = [
            ["domains", *sorted(map(str, kernel.domains))],
            ["rules", *sorted(map(str, kernel.substitutions.values()))],
            ["instructions", *sorted(map(_shown, kernel.instructions))],
            ["code", opencl_code(self.schedule.t_unit)],
        ]
        return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _shown(insn: lp.InstructionBase) -> str:
    inames, before = (
        " ".join(sorted(names)) for names in (insn.within_inames, insn.depends_on)
    )
    place = f"{insn.id} in [{inames}]" + (f" after {before}" if before else "")
    if isinstance(insn, lp.CInstruction):
        (assignee,) = insn.assignees
        return f"{place}: {assignee} by {insn.code}"
    return f"{place}: {insn.assignee} = {insn.expression}"


def begun():
    return Steps(APPLY)


def begun_with_two_reads_of_one_array():
    """An array that is read with two index lists is two operands."""
    return Steps(SQUARE)


def written():
    """A row summed in vectors over an index that they do not divide."""
    steps = Steps(APPLY_TWO)
    writer = NestWriter(steps.schedule)
    tile = writer.loop("e_tile", "4*{} < N", tag="g.0")
    for row, (matrix, field) in enumerate(steps.schedule.rows):
        i = writer.loop("i", size=3)
        lane, stored = (
            writer.loop("lane", f"4*{tile} + {{}} < N", size=4, tag=tag)
            for tag in ("", "unr")
        )
        array = writer.array("sum", (4,), DOUBLE, has_lanes=True)
        points = {"i": var(i), "e": 4 * var(tile) + var(lane)}
        dot = sum(
            var(steps.schedule.rules[matrix])(points["i"], j)
            * var(steps.schedule.rules[field])(points["e"], j)
            for j in range(4)
        )
        writer.tag(lane, "unr")
        at = var(array)[(var(lane),)]
        summed = writer.assign("summed", at, dot, (tile, i, lane))
        points["e"] = 4 * var(tile) + var(stored)
        value = var(array)[(var(stored),)]
        writer.store(row, value, points, (tile, i, stored), after=[summed])
    steps.schedule = writer.build()
    return steps


def stored_in_vectors(is_streamed=False):
    """Rows that vectors divide, stored by the macros that come with the kernel."""
    steps = Steps(WIDE)
    writer = NestWriter(steps.schedule)
    i = writer.loop("i", size=writer.schedule.extents["i"], tag="g.0")
    tile = writer.loop("k_tile", size=2)
    lane = writer.loop("lane", size=4, tag="unr")
    array = writer.array("sum", (4,), DOUBLE, has_lanes=True)
    left, right = (var(steps.schedule.rules[rule]) for rule in steps.schedule.rows[0])
    k = 4 * var(tile) + var(lane)
    dot = sum(left(var(i), j) * right(j, k) for j in range(5))
    at = var(array)[(var(lane),)]
    summed = writer.assign("summed", at, dot, (i, tile, lane))
    assert is_contiguous(steps.schedule, 0, "k")
    points = {"i": var(i), "k": 4 * var(tile)}
    writer.store_vector(
        *(0, var(array), points, (i, tile), [summed]), lanes=4, is_streamed=is_streamed
    )
    steps.schedule = writer.build()
    return steps


def streamed_in_vectors():
    """The same past the caches."""
    return stored_in_vectors(is_streamed=True)


def split_loop():
    steps = Steps(APPLY)
    steps.then(split, "e", 8, outer_tag="g.0")
    return steps


def split_loop_of_known_extent():
    steps = Steps(APPLY)
    steps.then(split, "i", 2, inner_tag="unr")
    return steps


def contracted():
    steps = Steps(MASS)
    (product,) = steps.then(merge_operands, 0, 2)
    assert steps.schedule.spans[product] == ("i", "e")
    assert steps.schedule.rows == (("J_1", product),)
    return steps


def contracted_for_two_rows():
    """Rows that share one operand only have products of their own."""
    steps = Steps(MASS_TWO)
    assert len(steps.then(merge_operands, 0, 2)) == 2
    return steps


def contracted_once_for_two_rows():
    """Rows that share both operands share the product."""
    steps = Steps(MASS_TWO)
    assert len(steps.then(merge_operands, 0, 1)) == 1
    return steps


def peeled():
    steps = Steps(APPLY)
    block = steps.then(split, "e", 8, outer_tag="g.0")
    steps.then(peel_remainder, "e", block, 4, (block.outer,))
    return steps


def hoisted():
    steps = Steps(APPLY)
    block = steps.then(split, "e", 8)
    steps.then(hoist_inames, (block.outer,))
    return steps


def joined():
    """Where one domain names the iname of another one, too."""
    steps = Steps(APPLY)
    separate = map(isl.BasicSet, SEPARATE)
    steps.schedule = steps.schedule.with_kernel(domains=list(separate))
    steps.then(join_domains)
    assert len(steps.schedule.kernel.domains) == 1
    return steps


def separated():
    steps = Steps(APPLY)
    steps.then(separate_inames, ("i", "j"))
    return steps


def factored():
    steps = Steps(APPLY)
    block = steps.then(split, "e", 8)
    steps.then(factor_domains, block.outer, (block.inner,))
    return steps


def staged_for_a_block():
    steps = Steps(APPLY)
    block = steps.then(split, "e", 8, outer_tag="g.0")
    tile = steps.then(stage_operand, "u_1", (block.outer,))
    assert set(tile.inames) == {"e", "j"}
    assert tile.instruction in steps.schedule.kernel.id_to_insn
    return steps


def staged_in_vectors():
    steps = peeled()
    (inner,) = [i for i in steps.schedule.kernel.all_inames() if i == "e_inner"]
    block = steps.then(split, inner, 4, inner_tag="unr")
    steps.then(stage_operand, "u_1", ("e_outer", block.outer), lane="e")
    return steps


def staged_over_one_entry():
    """An axis with a single entry has no loop."""
    e = einsum("ij,ej->ei", array("M", (3, 1)), array("u", ("N", 1)))
    steps = Steps(e)
    tile = steps.then(stage_operand, "u_1", ("e",))
    assert dict(tile.inames) == {}
    return steps


def vectorized():
    steps = Steps(APPLY)
    tile = steps.then(stage_operand, "u_1", ("e",))
    steps.tag(**{tile.inames["j"]: "unr", "j": "unr"})
    steps.then(vectorize_last_axis, tile.temporary)
    return steps


def accumulated():
    steps = Steps(APPLY)
    steps.then(stage_accumulator, "row_0", ("i",), DOUBLE)
    return steps


def accumulated_in_a_scalar():
    steps = Steps(SUMS)
    steps.then(stage_accumulator, "row_0", (), DOUBLE)
    return steps


def accumulated_without_a_sum():
    steps = Steps(einsum("ij->ij", M))
    steps.then(stage_accumulator, "row_0", ("j",), DOUBLE)
    return steps


def accumulated_in_lanes():
    steps = peeled()
    block = steps.then(split, "e_inner", 4, inner_tag="vec")
    steps.then(stage_operand, "u_1", ("e_outer", block.outer), lane="e")
    steps.then(stage_accumulator, "row_0", ("i",), DOUBLE, lane=block.inner)
    return steps


def accumulated_for_two_rows():
    steps = Steps(APPLY_TWO)
    for row in steps.schedule.instructions:
        steps.then(stage_accumulator, row, ("i",), DOUBLE)
    return steps


EXAMPLES = [
    begun,
    begun_with_two_reads_of_one_array,
    written,
    stored_in_vectors,
    streamed_in_vectors,
    split_loop,
    split_loop_of_known_extent,
    contracted,
    contracted_for_two_rows,
    contracted_once_for_two_rows,
    peeled,
    hoisted,
    joined,
    separated,
    factored,
    staged_for_a_block,
    staged_in_vectors,
    staged_over_one_entry,
    vectorized,
    accumulated,
    accumulated_in_a_scalar,
    accumulated_without_a_sum,
    accumulated_in_lanes,
    accumulated_for_two_rows,
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda f: f.__name__)
def test_a_primitive_makes_the_code_on_record_and_changes_no_result(
    example, assert_golden
):
    """The code is that of its golden file; the kernel computes what numpy computes."""
    steps = example()
    assert_golden(example.__name__, steps.text)
    sizes = [{"N": N_RAGGED}, {"N": 1}] if steps.case.einsum.size_params else [{}]
    steps.case.assert_right(steps.schedule.t_unit, sizes)


def test_what_tiles_divide_is_not_peeled():
    """No remainder, no second nest."""
    steps = Steps(einsum("ij,ej->ei", M, array("u", (8, 4))))
    block = steps.then(split, "e", 8)
    before = steps.schedule
    steps.then(peel_remainder, "e", block, 4, (block.outer,))
    assert steps.schedule is before


def test_a_peeled_loop_has_no_condition_on_lanes():
    """Full vectors are stored without a test for each lane."""
    code = accumulated_in_lanes().text
    assert "double4 row_0_acc" in code
    assert "-1 + N" not in code.partition("row_0_acc[")[2].partition("out[")[0]


def test_names_are_new():
    """Splitting twice makes different inames."""
    steps = Steps(einsum("i->i", array("a", 64)))
    first = steps.then(split, "i", 8)
    steps.schedule = replace(steps.schedule)
    second = steps.then(split, first.inner, 4)
    assert len({first.outer, first.inner, second.outer, second.inner}) == 4
    assert steps.schedule.fresh("a") != "a"
    assert steps.schedule.generate_id("row_0") != "row_0"


@pytest.mark.parametrize("target", [1, 2, 4, 8])
def test_an_even_block_divides_or_is_the_target(target):
    """A block divides the extent, or none within a factor of two does."""
    for extent in range(1, 40):
        size = even_block(extent, target)
        assert 1 <= size <= 2 * target
        near = range(max(1, target // 2), min(extent, 2 * target) + 1)
        divides = [n for n in near if extent % n == 0]
        assert extent % size == 0 if divides or extent <= target else size == target
