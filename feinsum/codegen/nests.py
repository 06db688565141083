"""The Loopy translation unit of a loop nest over a sparse tensor, and its data.

Each loop of the nest has an iname; bounds of loops over nodes are read from the tree's
pointers. A form determines vectors and threads. For ``ij,jk->ik`` with the tensor
``ij`` in CSR, vectors along ``k``, and chunks of the root for threads, the kernel is ::

    for chunk                                          threads
        out[rows[chunk] .. rows[chunk + 1]] = 0
        for node0 in chunks[chunk] .. chunks[chunk + 1]
            for node1 in pointers0[node0] .. pointers0[node0 + 1]
                for k_vector, k_lane                   vectors
                    out[...] = out[...] + values[node1]*T1[...]

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
    NestArrays,
    get_axes,
    get_dense_name,
    list_buffers,
    pad_chunks,
)
from feinsum.codegen.nest_writer import Writer
from feinsum.errors import InvalidEinsumError
from feinsum.nests import Nest, NestForm, Sizes, measure_sizes
from feinsum.nests.form import is_private
from feinsum.result_memory import make_aligned
from feinsum.sparse import CSF
from feinsum.targets.host.code import HostCTarget
from feinsum.words import format_count

PLAIN = NestForm()

SILENCED = ["v1_scheduler_fallback", "write_race(*)"]
"""Warnings to silence. Vectors need Loopy's older scheduler. Loopy cannot see that
chunks of the root write disjoint entries; :meth:`feinsum.nests.NestForm.check` checks
that.
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
    """Generate a Loopy kernel that executes a nest.

    Entries of the result that a loop completes are summed in registers, if they fit,
    and then added to the result.

    The arguments are those of :func:`make_nest_arguments`: the dense operands ``T0``,
    ``T1`` and so on, by position; the tree as ``indices0``, ``pointers0`` and so on, by
    level, and ``values``; the result ``out``, which the kernel zeroes first; a buffer
    ``X3`` for term 3 if it is too large to be private; ``chunks``, the first node of
    each chunk of the root; and ``rows``, the first row of the result of each chunk. If
    the network has several rows, dense operands of row 1 are ``T1_row1`` and so on, and
    the first axis of ``out`` is the row.

    Args:
        nest: the nest to execute.
        extents: extents of the indices that the tree does not have, or of all.
        dtype: dtype of operands, buffers and result.
        index_dtype: dtype of indices and pointers, as of
            :func:`choose_nest_index_dtype`.
        name: name of the kernel.
        form: vectors and parallel loops; by default there are none.
        target: a target of Loopy; by default that of the host.

    Raises:
        InvalidEinsumError: with the rule ``size``, if an extent is missing; with
            ``nest``, if the nest has no such form.

    >>> from feinsum.nests import parse_network, build_path
    >>> spmv = parse_network("ij,j->i")
    >>> nest = Nest(spmv, build_path(spmv, [(0, 1)]), (("i", "j"),))
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
    filled = form.filled({index: int(extents[index]) for index in sorted(dense)})
    target = target or HostCTarget()
    has_vector_sums = isinstance(target, HostCTarget) and np.dtype(dtype).kind == "f"
    writer = Writer(
        nest, filled, form, np.dtype(dtype), has_vector_sums=has_vector_sums
    )
    writer.write()
    entries = {i: str(n) for i, n in filled.items()}
    substitutes = {
        CHUNK: "n_chunks",
        ENTRY: f"nodes{len(network.levels) - 1}",
        ROW: str(network.n_rows),
        TILED: str(form.tile),
    }
    arguments = _make_arguments(writer, np.dtype(index_dtype), entries | substitutes)
    return make_nest_kernel(
        writer,
        arguments,
        name=name,
        index_dtype=np.dtype(WIDE),
        target=target,
        # chunks clear and write what is theirs, which Loopy cannot see
        options=lp.Options(disable_global_barriers=True),
    )


def make_nest_kernel(
    writer: Writer,
    arguments: Sequence[Any],
    rules: Sequence[lp.SubstitutionRule] = (),
    **options: Any,
) -> lp.TranslationUnit:
    """Make the kernel of a writer's statements.

    Args:
        writer: a writer whose statements are complete.
        arguments: arguments of the kernel, and further temporaries.
        rules: substitution rules that the statements call.
        options: options of :func:`loopy.make_kernel`.
    """
    unit = lp.make_kernel(
        writer.domains or ["{ : }"],
        [*rules, "\n".join(writer.lines)],
        [*arguments, *writer.temporaries],
        lang_version=(2018, 2),
        # lines are in order of execution; Loopy need not infer it
        seq_dependencies=True,
        silenced_warnings=SILENCED,
        **options,
    )
    unit = lp.tag_inames(unit, writer.tags)
    kernel = unit.default_entrypoint
    function = f"feinsum_sum_lanes_{writer.dtype.name}x{writer.form.lanes}"
    instructions = [
        _call_vector_sum(insn, function, writer.vector_sums[insn.id])
        if insn.id in writer.vector_sums
        else _convert_zero(writer.dtype, insn)
        for insn in kernel.instructions
    ]
    if writer.vector_sums:
        code = _write_vector_sum(function, writer.dtype, writer.form.lanes)
        kernel = kernel.copy(preambles=(*kernel.preambles, (f"20_{function}", code)))
    return unit.with_kernel(
        kernel.copy(instructions=instructions, loop_priority=_list_nestings(writer))
    )


def _call_vector_sum(insn: Any, function: str, vector: str) -> lp.CInstruction:
    """Replace the mark of a vector's sum by a call of the function that computes it."""
    return lp.CInstruction(
        [],
        f"{insn.assignee} = {function}({vector});",
        id=insn.id,
        depends_on=insn.depends_on,
        within_inames=insn.within_inames,
        assignees=(insn.assignee,),
        read_variables=frozenset({vector.partition("[")[0]}),
    )


def _write_vector_sum(function: str, dtype: np.dtype[Any], lanes: int) -> str:
    """Write the function that sums the lanes of a vector, in C.

    It adds halves: 3 additions for 8 lanes, where entries one by one take 8 additions
    that wait for each other, and 7 moves of lanes. The sum is also more precise.
    """
    entry = {4: "float", 8: "double"}[dtype.itemsize]
    code = [f"static inline {entry} {function}({entry}{lanes} x{lanes})", "{"]
    whole, n = f"{entry}{lanes}", lanes
    while n > 2:
        # a union, because old compilers have no __builtin_shufflevector
        half, size = f"part{n // 2}", n // 2 * dtype.itemsize
        code += [
            f"  typedef {entry} {half} __attribute__((vector_size({size})));",
            f"  const union {{ {whole} all; {half} halves[2]; }} u{n} = {{ x{n} }};",
            f"  const {half} x{n // 2} = u{n}.halves[0] + u{n}.halves[1];",
        ]
        whole, n = half, n // 2
    code += ["  return x2[0] + x2[1];", "}"]
    return "\n".join(code)


def _list_nestings(writer: Writer) -> frozenset[tuple[str, ...]]:
    """Return the sequential loops around each innermost loop, outermost first.

    Without this priority, Loopy chooses where bounds do not determine the order.
    """
    chains, around = set(), [""]
    for line in writer.lines:
        word, _, iname = line.strip().partition(" ")
        if word in ("for", "if"):
            is_loop = word == "for" and writer.tags.get(iname) not in ("vec", "g.0")
            around.append(iname if is_loop else "")
        elif word == "end":
            chains.add(tuple(filter(None, around)))
            around.pop()
    return frozenset(chain for chain in chains if len(chain) > 1)


def _convert_zero(dtype: np.dtype[Any], insn: Any) -> Any:
    """Convert a zero to the entries' dtype: Loopy assigns an integer lane by lane."""
    is_zero = isinstance(insn, lp.Assignment) and insn.expression == 0
    return insn.copy(expression=dtype.type(0)) if is_zero else insn


def _make_arguments(
    writer: Writer, index_dtype: np.dtype[Any], entries: dict[str, str]
) -> list[Any]:
    nest, form, dtype = writer.nest, writer.form, writer.dtype
    network = nest.network
    extents = {**{i: f"extent_{i}" for i in network.levels}, **entries}

    def array(name: str, indices: tuple[str, ...], **options: bool) -> Any:
        shape, tags = get_axes(indices, extents, form)
        if name != "out" and CHUNK in indices:
            shape = pad_chunks(shape)
        return lp.GlobalArg(name, dtype=dtype, shape=shape, dim_tags=tags, **options)

    last = len(network.levels) - 1
    arguments: list[Any] = [
        array(get_dense_name(position, row), term)
        for row in range(network.n_rows)
        for position, term in enumerate(network.inputs)
        if position != network.sparse
    ]
    for level in range(last + 1):
        nodes = f"nodes{level}"
        arguments.append(lp.GlobalArg(f"indices{level}", index_dtype, shape=(nodes,)))
        arguments.append(lp.ValueArg(nodes, WIDE))
        if level < last:
            above = (f"{nodes} + 1",)
            arguments.append(lp.GlobalArg(f"pointers{level}", index_dtype, shape=above))
    if network.levels:
        arguments.append(lp.GlobalArg("values", dtype, shape=(f"nodes{last}",)))
    arguments += [lp.ValueArg(f"extent_{i}", WIDE) for i in network.levels]
    if form.is_chunked:
        arguments.append(lp.ValueArg("n_chunks", WIDE))
        arguments.append(lp.GlobalArg("chunks", index_dtype, shape=("n_chunks + 1",)))
    if form.is_chunked and not form.has_copies:
        arguments.append(lp.GlobalArg("rows", index_dtype, shape=("n_chunks + 1",)))
    arguments.append(
        array("out", writer.result.indices, is_input=False, is_output=True)
    )
    for buffer in nest.buffers:
        buffer_array = writer.buffers[buffer.producer]
        is_own = is_private(buffer.indices, writer.dense, network.n_rows)
        arguments.append(
            writer.declare_private_array(buffer_array)
            if is_own
            else array(buffer_array.name, buffer_array.indices)
        )
    return arguments


Array = np.ndarray[Any, np.dtype[Any]]


def make_nest_arguments(
    nest: Nest,
    operands: Sequence[Any],
    *,
    dtype: DTypeLike = np.float64,
    form: NestForm = PLAIN,
    n_chunks: int = 1,
) -> dict[str, Any]:
    """Return the arguments of the kernel of a nest, with memory for its result.

    Args:
        nest: the nest of the kernel.
        operands: an array for each input, a tree for the sparse one. If the network has
            several rows, the operands of all rows in turn, with the same tree in each.
        dtype: dtype to which dense operands and values are converted.
        form: form of the kernel. Operands are copied if lanes must be padded.
        n_chunks: maximum number of chunks of the root; see :func:`split_root`.

    Raises:
        InvalidEinsumError: with the rule ``shape``, if operands do not fit.
    """
    rows = _split_into_rows(nest, operands)
    sizes = measure_sizes(nest.network, rows[0])
    kind = np.dtype(dtype)
    arguments: dict[str, Any] = {}
    for operand in rows[0]:
        if isinstance(operand, CSF):
            arguments = make_tree_arguments(nest, operand, sizes, kind, form, n_chunks)
    shapes = compute_output_shapes(nest, sizes, form, arguments.get("n_chunks", 1))
    fresh = {name: make_aligned(shape, kind) for name, shape in shapes.items()}
    return arguments | make_dense_arguments(nest, operands, kind, form) | fresh


def _split_into_rows(nest: Nest, operands: Sequence[Any]) -> list[Sequence[Any]]:
    """Split the operands into rows.

    Raises:
        InvalidEinsumError: with the rule ``shape``, if rows differ in sizes or tree.
    """
    network = nest.network
    n, n_rows = len(network.inputs), network.n_rows
    if len(operands) != n * n_rows:
        _refuse(
            f"{format_count(len(operands), 'operand')} for {n_rows} rows of "
            f"{format_count(n, 'term')}"
        )
    rows = [operands[n * row : n * (row + 1)] for row in range(n_rows)]
    for number, row in enumerate(rows[1:], 1):
        if measure_sizes(network, row) != measure_sizes(network, rows[0]):
            _refuse(f"the operands of row {number} have other sizes than those of 0")
        trees = [x for x in row if isinstance(x, CSF)]
        # one loop over the nodes serves all rows
        if any(tree is not rows[0][network.sparse or 0] for tree in trees):
            _refuse(f"row {number} has another tree than row 0")
    return rows


def _refuse(message: str) -> None:
    raise InvalidEinsumError(
        f"the operands do not match the nest: {message}", rules=("shape",)
    )


def make_tree_arguments(
    nest: Nest,
    tree: CSF,
    sizes: Sizes,
    dtype: np.dtype[Any],
    form: NestForm,
    n_chunks: int,
) -> dict[str, Any]:
    """Return the arguments that depend on the tree: arrays, chunks, and all numbers.

    Arrays of the tree with the kernel's dtypes are not copied.
    """
    kind = choose_nest_index_dtype(nest, sizes)
    arguments: dict[str, Any] = {"values": np.asarray(tree.values, dtype, order="C")}
    for level, array in enumerate(tree.indices):
        arguments[f"indices{level}"] = np.asarray(array, kind, order="C")
        arguments[f"nodes{level}"] = len(array)
    # the last level has no children
    for level, array in enumerate(tree.pointers):
        arguments[f"pointers{level}"] = np.asarray(array, kind, order="C")
    if form.is_chunked:
        chunks = split_root(tree, n_chunks)
        arguments |= {"chunks": chunks.astype(kind), "n_chunks": len(chunks) - 1}
        if not form.has_copies:
            arguments["rows"] = find_chunk_rows(nest, tree, chunks).astype(kind)
    return arguments | {f"extent_{i}": sizes.extents[i] for i in nest.network.levels}


def make_dense_arguments(
    nest: Nest, operands: Sequence[Any], dtype: np.dtype[Any], form: NestForm
) -> dict[str, Array]:
    """Return the dense operands by name, with padded lanes."""
    inputs = nest.network.inputs
    arguments = {}
    for number, operand in enumerate(operands):
        row, position = divmod(number, len(inputs))
        if not isinstance(operand, CSF):
            array = np.require(operand, dtype, ["C", "A"])
            if form.lane and form.lane in inputs[position]:
                array = _split_lanes(array, form)
            arguments[get_dense_name(position, row)] = array
    return arguments


def compute_output_shapes(
    nest: Nest, sizes: Sizes, form: NestForm, n_chunks: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a kernel's outputs: its result, and large buffers.

    >>> from feinsum.nests import parse_network, build_path
    >>> spmm = parse_network("ij,jk->ik")
    >>> nest = Nest(spmm, build_path(spmm, [(0, 1)]), (("i", "j", "k"),))
    >>> sizes = Sizes({"i": 2, "j": 3, "k": 5}, (2, 5))
    >>> compute_output_shapes(nest, sizes, NestForm("k", 4), 1)
    {'out': (2, 2, 4)}
    """
    network, extents = nest.network, form.filled(sizes.extents)
    n_rows = network.n_rows
    lengths = {**extents, CHUNK: n_chunks, TILED: form.tile, ROW: n_rows}
    lengths[ENTRY] = sizes.nodes[-1] if sizes.nodes else 0

    def shape(indices: Sequence[str]) -> tuple[int, ...]:
        axis_lengths = tuple(lengths[i] for i in indices)
        if not form.lane or not {form.lane, TILED}.intersection(indices):
            return axis_lengths
        *outer, last = axis_lengths
        return (*outer, last // form.lanes, form.lanes)

    axes = NestArrays(nest, form).list_result_axes()
    shapes = {"out": shape(axes)}
    dense = {i: n for i, n in extents.items() if i not in network.level_of}
    buffers = list_buffers(nest, form, dense)
    for buffer in nest.buffers:
        if not is_private(buffer.indices, dense, n_rows):
            buffer_array = buffers[buffer.producer]
            buffer_shape = shape(buffer_array.indices)
            if buffer_array.indices[0] == CHUNK:
                buffer_shape = pad_chunks(buffer_shape)
            shapes[buffer_array.name] = buffer_shape
    return shapes


def extract_nest_result(nest: Nest, form: NestForm, out: Array, sizes: Sizes) -> Array:
    """Return the result of a nest, given the output of its kernel.

    This adds up copies and removes padding. The result may be a view. If there are
    several rows, they are the first axis.

    >>> from feinsum.nests import parse_network, build_path
    >>> spmm = parse_network("ij,jk->ik")
    >>> nest = Nest(spmm, build_path(spmm, [(0, 1)]), (("i", "j", "k"),))
    >>> sizes = Sizes({"i": 2, "j": 3, "k": 3}, (2, 5))
    >>> extract_nest_result(nest, NestForm("k", 2), np.ones((2, 2, 2)), sizes).shape
    (2, 3)
    """
    if nest.network.has_sparse_output:
        return out
    if form.has_copies and len(out) > 1:
        total = make_aligned(out.shape[1:], out.dtype)
        out = np.add.reduce(out, axis=0, out=total)
    elif form.has_copies:
        out = out.reshape(out.shape[1:])  # out[0] would be no array if it has no axis
    if form.lane not in nest.network.output:
        return out
    *outer_axes, n_vectors, lanes = out.shape
    flat = out.reshape((*outer_axes, n_vectors * lanes))
    extent = sizes.extents[form.lane]
    if extent == n_vectors * lanes:
        return flat
    result = make_aligned((*outer_axes, extent), out.dtype)
    result[...] = flat[..., :extent]
    return result


def split_root(tree: CSF, n_chunks: int) -> Array:
    """Divide the root into chunks with about equal numbers of entries.

    Args:
        tree: the tree to divide.
        n_chunks: maximum number of chunks; there are fewer if nodes are large.

    Returns:
        The first node of each chunk, and then the number of nodes. A tree without nodes
        has one chunk.

    >>> from feinsum.sparse import COO, to_csf
    >>> rows = [0, 0, 0, 0, 1, 2, 3]
    >>> tree = to_csf(COO((4, 9), (rows, [0, 1, 2, 3, 0, 0, 0]), [1.0] * 7))
    >>> split_root(tree, 2)
    array([0, 1, 4])
    """
    begins = _find_first_entries(tree)
    wanted = np.linspace(0, begins[-1], max(n_chunks, 1) + 1)[1:-1]
    cuts = np.searchsorted(begins, wanted)
    n_nodes = len(tree.indices[0])
    # a chunk consists of whole nodes of the root: chunks then write disjoint rows, and
    # need no atomics
    inner = np.unique(cuts[(cuts > 0) & (cuts < n_nodes)])
    return np.concatenate([[0], inner, [n_nodes]])


def find_chunk_rows(nest: Nest, tree: CSF, chunks: Array) -> Array:
    """Return the bounds of the rows of the result that each chunk of the root zeroes.

    Returns:
        Values of the root's index; positions of entries if the result is sparse.

    >>> from feinsum.nests import parse_network, build_path
    >>> from feinsum.sparse import COO, to_csf
    >>> spmv = parse_network("ij,j->i")
    >>> nest = Nest(spmv, build_path(spmv, [(0, 1)]), (("i", "j"),))
    >>> tree = to_csf(COO((9, 9), ([1, 1, 4, 6], [0, 1, 2, 3]), [1.0] * 4))
    >>> find_chunk_rows(nest, tree, np.array([0, 1, 3]))
    array([0, 4, 9])
    """
    if nest.network.has_sparse_output:
        return _find_first_entries(tree)[chunks]
    # rows between two root nodes have no entries, but some chunk must zero them
    inner = tree.indices[0][chunks[1:-1]]
    return np.concatenate([[0], inner, [tree.shape[tree.axes[0]]]])


def _find_first_entries(tree: CSF) -> Array:
    """Return the bounds of the entries below each node of the root."""
    # follow the pointers from one level to the next
    begins = np.arange(len(tree.indices[0]) + 1)
    for pointers in tree.pointers:
        begins = pointers[begins]
    return begins


def choose_nest_index_dtype(nest: Nest, sizes: Sizes) -> np.dtype[Any]:
    """Return the dtype of the tree's indices: int32 if all fit, else int64.

    Subscripts are computed in 64 bits in either case.

    >>> from feinsum.nests import parse_network, build_path
    >>> spmm = parse_network("ij,jk->ik")
    >>> nest = Nest(spmm, build_path(spmm, [(0, 1)]), (("i", "j", "k"),))
    >>> choose_nest_index_dtype(nest,
    ...     Sizes({"i": 100, "j": 10**8, "k": 32}, (100, 500)))
    dtype('int32')
    """
    extents = (sizes.extents[i] for i in nest.network.levels)
    # shorter indices halve the memory traffic of the tree, which limits most kernels
    largest = max((*sizes.nodes, *extents), default=0)
    return np.dtype(np.int32 if largest < 2**31 - 1 else np.int64)


def _split_lanes(array: Array, form: NestForm) -> Array:
    """Split the last axis in two, in a copy padded with zeros if necessary."""
    *outer_axes, extent = array.shape
    filled = form.filled({form.lane: extent})[form.lane]
    # padding lanes read zeros, which add nothing to sums
    if filled > extent:
        copy = make_aligned((*outer_axes, filled), array.dtype)
        copy[..., :extent], copy[..., extent:] = array, 0
        array = copy
    return array.reshape((*outer_axes, filled // form.lanes, form.lanes))
