"""The Loopy translation unit of a loop nest over a sparse tensor.

There is an iname for each loop of the nest; loops over nodes have bounds read from the
tree's pointers. A form determines vectors and threads.

Source: Kanakagiri and Solomonik 2024 (SpTTN), section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import loopy as lp
import numpy as np
from numpy.typing import DTypeLike

from feinsum.codegen.nest_arrays import (
    CHUNK,
    ENTRY,
    ROW,
    TILED,
    WIDE,
    apart,
    axes_of,
    operand_name,
)
from feinsum.codegen.nest_writer import Writer
from feinsum.errors import InvalidEinsumError
from feinsum.nests import Nest, NestForm
from feinsum.nests.form import is_private
from feinsum.targets.host.code import HostCTarget

PLAIN = NestForm()

SILENCED = ["v1_scheduler_fallback", "write_race(*)"]
"""Loopy's newer scheduler has no vectors; and Loopy cannot see that chunks of the root
write disjoint parts, which :meth:`feinsum.nests.NestForm.check` checks.
"""


def generate_nest(
    nest: Nest,
    extents: Mapping[str, int],
    *,
    dtype: DTypeLike = np.float64,
    index_dtype: DTypeLike = np.int32,
    name: str = "feinsum_nest",
    form: NestForm = PLAIN,
    target: Any = None,
) -> lp.TranslationUnit:
    """A Loopy kernel that executes a nest.

    Small parts of the result that a loop completes are summed in registers and then
    added to the result.

    The arguments are those of :func:`nest_arguments`: the dense operands ``T0``, ``T1``
    and so on, by position; the tree as ``indices0``, ``pointers0`` and so on, by level,
    and ``values``; the result ``out``, which the kernel first sets to zero; a buffer
    ``X3`` for term 3 if it is too large to be private; the first node of each chunk of
    the root, ``chunks``; and ``rows``, where a chunk's part of the result begins. If
    the network has several rows, dense operands of row 1 are ``T1_row1`` and so on, and
    the first axis of ``out`` is the row.

    Args:
        nest: the nest to execute.
        extents: of the indices that the tree does not have, or of all.
        dtype: of operands, buffers and result.
        index_dtype: of indices and pointers; that of :func:`nest_index_dtype`.
        name: of the kernel.
        form: how the loops are executed; by default plainly.
        target: one of Loopy's; by default that of the host.

    Raises:
        InvalidEinsumError: with the rule ``size``, if an extent is missing; with
            ``nest``, if the nest has no such form.

    >>> from feinsum.nests import network, path_from_pairs
    >>> spmv = network("ij,j->i")
    >>> nest = Nest(spmv, path_from_pairs(spmv, [(0, 1)]), (("i", "j"),))
    >>> for instruction in generate_nest(nest, {}).default_entrypoint.instructions:
    ...     print(instruction.assignee, "=", instruction.expression)
    out[i_1] = 0.0
    i_0 = indices0[node0]
    total = 0.0
    begin1 = pointers0[node0]
    end1 = pointers0[node0 + 1]
    j_0 = indices1[node1]
    total = total + values[node1]*T1[j_0]
    out[i_0] = total
    """
    network = nest.network
    dense = network.indices.difference(network.levels)
    missing = sorted(dense.difference(extents))
    if missing:
        raise InvalidEinsumError(
            f"no extent is given for {missing}; the kernel of a nest needs the extents "
            "of all indices that the tree lacks",
            rules=("size",),
        )
    form.check(nest)
    known = form.filled({index: int(extents[index]) for index in sorted(dense)})
    writer = Writer(nest, known, form, np.dtype(dtype))
    writer.write()
    entries = {i: str(n) for i, n in known.items()}
    places = {
        CHUNK: "n_chunks",
        ENTRY: f"nodes{len(network.levels) - 1}",
        ROW: str(network.n_rows),
        TILED: str(form.tile),
    }
    arguments = _arguments(writer, np.dtype(index_dtype), entries | places)
    return make_nest_kernel(
        writer,
        arguments,
        name=name,
        index_dtype=np.dtype(WIDE),
        target=target or HostCTarget(),
        # chunks clear and write what is theirs, which Loopy cannot see
        options=lp.Options(disable_global_barriers=True),
    )


def make_nest_kernel(
    writer: Writer,
    arguments: Sequence[Any],
    rules: Sequence[lp.SubstitutionRule] = (),
    **options: Any,
) -> lp.TranslationUnit:
    """The kernel of the statements of a writer.

    Args:
        arguments: its arrays and numbers, and temporaries in addition to the writer's.
        rules: the rules that its lines call.
        options: of :func:`loopy.make_kernel`.
    """
    made = lp.make_kernel(
        writer.domains or ["{ : }"],
        [*rules, "\n".join(writer.lines)],
        [*arguments, *writer.own],
        lang_version=(2018, 2),
        # lines are written in their order of execution; Loopy need not infer it
        seq_dependencies=True,
        silenced_warnings=SILENCED,
        **options,
    )
    made = lp.tag_inames(made, writer.tags)
    kernel = made.default_entrypoint
    typed = [_typed_zero(writer.dtype, insn) for insn in kernel.instructions]
    nesting = _nesting(writer) if writer.form.is_ordered else frozenset()
    return made.with_kernel(kernel.copy(instructions=typed, loop_priority=nesting))


def _nesting(writer: Writer) -> frozenset[tuple[str, ...]]:
    """The loops around each innermost one, from outside; without lanes and grid.

    If bounds do not determine the order of loops, Loopy would choose.
    """
    found, around = set(), [""]
    for line in writer.lines:
        word, _, iname = line.strip().partition(" ")
        if word in ("for", "if"):
            is_loop = word == "for" and writer.tags.get(iname) not in ("vec", "g.0")
            around.append(iname if is_loop else "")
        elif word == "end":
            found.add(tuple(filter(None, around)))
            around.pop()
    return frozenset(chain for chain in found if len(chain) > 1)


def _typed_zero(dtype: np.dtype[Any], insn: Any) -> Any:
    """A zero in the entries' dtype: an integer would be assigned lane by lane."""
    is_zero = isinstance(insn, lp.Assignment) and insn.expression == 0
    return insn.copy(expression=dtype.type(0)) if is_zero else insn


def _arguments(
    writer: Writer, index_dtype: np.dtype[Any], entries: dict[str, str]
) -> list[Any]:
    nest, form, dtype = writer.nest, writer.form, writer.dtype
    network = nest.network
    extents = {**{i: f"extent_{i}" for i in network.levels}, **entries}

    def array(name: str, indices: tuple[str, ...], **options: bool) -> Any:
        shape, tags = axes_of(indices, extents, form)
        if name != "out" and CHUNK in indices:
            shape = apart(shape)
        return lp.GlobalArg(name, dtype=dtype, shape=shape, dim_tags=tags, **options)

    last = len(network.levels) - 1
    made: list[Any] = [
        array(operand_name(position, row), term)
        for row in range(network.n_rows)
        for position, term in enumerate(network.inputs)
        if position != network.sparse
    ]
    for level in range(last + 1):
        nodes = f"nodes{level}"
        made.append(lp.GlobalArg(f"indices{level}", index_dtype, shape=(nodes,)))
        made.append(lp.ValueArg(nodes, WIDE))
        if level < last:
            above = (f"{nodes} + 1",)
            made.append(lp.GlobalArg(f"pointers{level}", index_dtype, shape=above))
    if network.levels:
        made.append(lp.GlobalArg("values", dtype, shape=(f"nodes{last}",)))
    made += [lp.ValueArg(f"extent_{i}", WIDE) for i in network.levels]
    if form.is_chunked:
        made.append(lp.ValueArg("n_chunks", WIDE))
        made.append(lp.GlobalArg("chunks", index_dtype, shape=("n_chunks + 1",)))
    if form.is_chunked and not form.has_copies:
        made.append(lp.GlobalArg("rows", index_dtype, shape=("n_chunks + 1",)))
    made.append(array("out", writer.result.indices, is_input=False, is_output=True))
    for buffer in nest.buffers:
        place = writer.buffers[buffer.producer]
        is_own = is_private(buffer.indices, writer.dense, network.n_rows)
        made.append(
            writer.private_array(place) if is_own else array(place.name, place.indices)
        )
    return made
