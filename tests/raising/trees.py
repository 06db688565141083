"""Kernels over trees: einsums of a sparse operand as users write them, with data.

The arrays of a tree are ``ptr1``, ``idx1`` and so on, by level, and ``v``.
"""

from __future__ import annotations

import re

import loopy as lp
import numpy as np

from feinsum.sparse import COO, CSF, CSR, random_uniform, to_csf, to_csr, to_dense
from feinsum.targets.host.code import HostCTarget

EXTENTS = {"i": 9, "j": 8, "k": 7, "l": 6, "a": 6, "c": 5, "r": 4, "s": 5, "t": 3}

EINSUMS = {
    "SpMV": "ij,j->i",
    "SpMM": "ij,jc->ic",
    "SDDMM": "ij,ic,jc->ij",
    "MTTKRP-3": "ijk,ja,ka->ia",
    "MTTKRP-4": "ijkl,ja,ka,la->ia",
    "MTTKRP of the last mode": "ijk,ia,ja->ka",
    "TTMc-3": "ijk,jr,ks->irs",
    "TTMc-4": "ijkl,jr,ks,lt->irst",
    "TTTP": "ijk,ia,ja,ka->ijk",
}


def made(domains, text, shapes, *, dtype=np.float64, temporaries=()):
    """A kernel for the host; ``shapes`` is what its arrays are as text."""
    args = [
        lp.GlobalArg(n, np.int32 if n.startswith(("ptr", "idx")) else dtype, shape=s)
        for n, s in shapes.items()
    ]
    names = {name for s in shapes.values() for name in re.findall(r"[a-z]\w*", s)}
    numbers = [lp.ValueArg(name, np.int32) for name in sorted(names)]
    scalars = [n for n in ("alpha", "beta") if re.search(rf"\b{n}\b", text)]
    numbers += [lp.ValueArg(name, dtype) for name in scalars]
    return lp.make_kernel(
        domains,
        text,
        [*args, *numbers, *temporaries],
        lang_version=(2018, 2),
        target=HostCTarget(),
    )


def tree_kernel(subscripts, *, has_dense_root=False, dtype=np.float64, in_call=""):
    """An einsum, all factors in one sum over the leaves, added to the result.

    Extents of sparse indices are arguments, and those that only a call tells; others
    are numbers.
    """
    inputs, output = subscripts.split("->")
    tree, *dense = inputs.split(",")
    last = len(tree) - 1
    rest = sorted(set("".join(dense)) - set(tree))
    sizes = {i: f"n_{i}" if i in tree + in_call else str(EXTENTS[i]) for i in EXTENTS}
    root = "i" if has_dense_root else "p0"
    count = "n_i" if has_dense_root else "nodes0"
    domains = [f"{{[{root}]: 0<={root}<{count}}}"]
    domains += [f"{{[{i}]: 0<={i}<{sizes[i]}}}" for i in rest]
    lines, loads, at = [f"for {root}"], [], {"i": root}
    if not has_dense_root:
        lines.append("<> i_0 = idx0[p0] {id=i_0}")
        loads, at = ["i_0"], {"i": "i_0"}
    for level in range(1, last + 1):
        above = root if level == 1 else f"p{level - 1}"
        lines += [
            f"<> b{level} = ptr{level}[{above}] {{id=b{level}}}",
            f"<> e{level} = ptr{level}[{above}+1] {{id=e{level}}}",
        ]
        loads += [f"b{level}", f"e{level}"]
        place = f"p{level}"
        domains.append(
            f"[b{level},e{level}] -> {{[{place}]: b{level}<={place}<e{level}}}"
        )
        at[tree[level]] = f"idx{level}[{place}]"
        if level < last or output == tree or tree[-1] in output:
            lines.append(f"for {place}")
    reads = [f"D{k}[{', '.join(at.get(i, i) for i in term)}]"
             for k, term in enumerate(dense)]  # fmt: skip
    summed = [i for i in rest if i not in output]
    is_inner = output != tree and tree[-1] not in output
    summed += [f"p{last}"] if is_inner else []
    value = "*".join([f"v[p{last}]", *reads])
    value = f"sum([{', '.join(summed)}], {value})" if summed else value
    place = f"p{last}" if output == tree else ", ".join(at.get(i, i) for i in output)
    start = "" if output == tree else f"out[{place}] + "
    lines.append(f"out[{place}] = {start}{value} {{id=row,dep={':'.join(loads)}}}")
    lines += ["end"] * sum(line.startswith("for ") for line in lines)
    shapes = {"v": "nnz", "out": "nnz" if output == tree else _shape(output, sizes)}
    for level in range(last + 1):
        nodes = f"nodes{level}" if level < last else "nnz"
        if level or not has_dense_root:
            shapes[f"idx{level}"] = nodes
        if level:
            above = "n_i" if has_dense_root and level == 1 else f"nodes{level - 1}"
            shapes[f"ptr{level}"] = f"{above}+1"
    shapes |= {f"D{k}": _shape(term, sizes) for k, term in enumerate(dense)}
    return made(domains, "\n".join(lines), shapes, dtype=dtype)


def _shape(term, sizes):
    return ",".join(sizes[i] for i in term)


def patterns(shape):
    """Trees with empty slices, one entry, and every entry."""
    n = int(np.prod(shape))
    yield to_csf(random_uniform(shape, max(1, n // 9), seed=0))
    yield to_csf(random_uniform(shape, 1, seed=1))
    yield to_csf(random_uniform(shape, n, seed=2))


def rows():
    """Matrices of 9 rows and 8 columns: ragged, empty, of one entry, dense."""
    entries = [0, 0, 2, 2, 2, 8, 5], [1, 3, 0, 2, 7, 4, 4]
    yield to_csr(COO((9, 8), tuple(map(np.array, entries)), np.arange(1.0, 8)))
    yield CSR((9, 8), np.zeros(10, np.int32), np.zeros(0, np.int32), np.zeros(0))
    yield to_csr(random_uniform((9, 8), 1, seed=0))
    yield to_csr(random_uniform((9, 8), 72, seed=0))


def tree_call(subscripts, tree, *, dtype=np.float64, **in_call):
    """The arguments of :func:`tree_kernel`, and the result that is right.

    Args:
        in_call: extents that are arguments.
    """
    extents = EXTENTS | in_call
    rng = np.random.default_rng(0)
    inputs, output = subscripts.split("->")
    term, *dense = inputs.split(",")
    arrays = [rng.random([extents[i] for i in t]).astype(dtype) for t in dense]
    is_matrix = isinstance(tree, CSR)
    indices = (None, tree.indices) if is_matrix else tree.indices
    pointers = (tree.pointers,) if is_matrix else tree.pointers
    given = {"v": tree.values.astype(dtype), "nnz": len(tree.values)}
    for level, index in enumerate(indices):
        if index is not None:
            given |= {f"idx{level}": index.astype(np.int32)}
            given |= {f"nodes{level}": len(index)} if level < len(term) - 1 else {}
        if level:
            given[f"ptr{level}"] = pointers[level - 1].astype(np.int32)
    given |= {f"D{k}": array for k, array in enumerate(arrays)}
    given |= {f"n_{i}": extents[i] for i in [*term, *in_call]}
    found = np.einsum(subscripts, to_dense(tree).astype(dtype), *arrays, optimize=True)
    if output == term:
        flat = to_dense(_ones(tree)).astype(bool)
        given["out"] = np.full(len(tree.values), np.nan, dtype)
        return given, found[flat]
    given["out"] = rng.random(found.shape).astype(dtype)
    return given, given["out"] + found


def _ones(tree):
    values = np.ones(len(tree.values))
    if isinstance(tree, CSR):
        return CSR(tree.shape, tree.pointers, tree.indices, values)
    return CSF(tree.shape, tree.axes, tree.indices, tree.pointers, values)


CSR_SHAPES = {"ptr1": "n_i+1", "idx1": "nnz", "v": "nnz"}
ROWS = ["{[i]: 0<=i<n_i}", "[b,e] -> {[p]: b<=p<e}"]
BOUNDS = "<> b = ptr1[i] {id=b}\n<> e = ptr1[i+1] {id=e}\n"
VECTORS = {**CSR_SHAPES, "x": "n_j", "out": "n_i"}
MATRICES = {**CSR_SHAPES, "x": "n_j,5", "out": "n_i,5"}


def over_rows(body, shapes=VECTORS, *, domains=(), before="", **options):
    """A kernel in whose loop over rows the bounds of a row are ``b`` and ``e``."""
    text = f"{before}for i\n{BOUNDS}{body}\nend"
    return made([*ROWS, *domains], text, shapes, **options)


C5 = "{[c]: 0<=c<5}"
WAYS = {
    "a sum": (over_rows("out[i] = sum(p, v[p]*x[idx1[p]]) {dep=b:e}"), "A@x"),
    "scaled and shifted": (
        over_rows("out[i] = beta*out[i] + alpha*sum(p, v[p]*x[idx1[p]]) {dep=b:e}"),
        "0.5*out + 3*(A@x)",
    ),
    "accumulated from zero": (
        over_rows(
            "out[i] = 0 {id=zero}\n"
            "for p\nout[i] = out[i] + v[p]*x[idx1[p]] {dep=b:e:zero}\nend"
        ),
        "A@x",
    ),
    "accumulated": (
        over_rows("for p\nout[i] = out[i] + v[p]*x[idx1[p]] {dep=b:e}\nend"),
        "out + A@x",
    ),
    "a private sum": (
        over_rows(
            "<> t = 0.0 {id=t0}\nfor p\n<> j = idx1[p] {id=j}\n"
            "t = t + v[p]*x[j] {id=t,dep=b:e:t0:j}\nend\nout[i] = 2*t {dep=t}"
        ),
        "2*(A@x)",
    ),
    "a start and a length": (
        made(
            [ROWS[0], "[e] -> {[p]: 0<=p<e}"],
            "for i\n<> b = ptr1[i] {id=b}\n<> e = ptr1[i+1] - b {id=e,dep=b}\n"
            "out[i] = sum(p, v[b+p]*x[idx1[b+p]]) {dep=b:e}\nend",
            VECTORS,
        ),
        "A@x",
    ),
    "a rule": (
        over_rows(
            "out[i] = sum(p, v[p]*X(p)) {dep=b:e}", before="X(q) := x[idx1[q]]\n"
        ),
        "A@x",
    ),
    "by columns": (
        over_rows(
            "for p\nout[idx1[p]] = out[idx1[p]] + v[p]*x[i] {dep=b:e}\nend",
            {**CSR_SHAPES, "x": "n_i", "out": "n_j"},
        ),
        "out + A.T@x",
    ),
    "a function of an operand": (
        over_rows("out[i] = sum(p, v[p]*exp(x[idx1[p]])) {dep=b:e}"),
        "A@np.exp(x)",
    ),
    "a product of values": (
        over_rows("out[i] = sum(p, v[p]*v[p]*x[idx1[p]]) {dep=b:e}"),
        "A**2@x",
    ),
    "a pattern without values": (
        over_rows("out[i] = sum(p, x[idx1[p]]) {dep=b:e}"),
        "(A != 0)@x",
    ),
    "sums of rows": (over_rows("out[i] = sum(p, v[p]) {dep=b:e}"), "A.sum(axis=1)"),
    "many columns": (
        over_rows(
            "out[i,c] = sum(p, v[p]*x[idx1[p],c]) {dep=b:e}", MATRICES, domains=[C5]
        ),
        "A@x",
    ),
    "a number of columns that a call tells": (
        over_rows(
            "out[i,c] = sum(p, v[p]*x[idx1[p],c]) {dep=b:e}",
            {**CSR_SHAPES, "x": "n_j,n_c", "out": "n_i,n_c"},
            domains=["{[c]: 0<=c<n_c}"],
        ),
        "A@x",
    ),
    "one domain of columns and entries": (
        made(
            [ROWS[0], "[b,e] -> {[p,c]: b<=p<e and 0<=c<5}", "{[c0]: 0<=c0<5}"],
            f"for i\n{BOUNDS}for c0\nout[i,c0] = 0 {{id=zero}}\nend\n"
            "for p,c\nout[i,c] = out[i,c] + v[p]*x[idx1[p],c] {dep=b:e:zero}\nend\nend",
            MATRICES,
        ),
        "A@x",
    ),
    "zeros in loops of their own": (
        made(
            [*ROWS, C5, "{[i0,c0]: 0<=i0<n_i and 0<=c0<5}"],
            f"out[i0,c0] = 0 {{id=zero}}\nfor i\n{BOUNDS}"
            "for p,c\nout[i,c] = out[i,c] + v[p]*x[idx1[p],c] {dep=b:e:zero}\nend\nend",
            MATRICES,
        ),
        "A@x",
    ),
    "beside other loops": (
        made(
            [*ROWS, C5, "{[i0,c0]: 0<=i0<n_i and 0<=c0<5}"],
            f"for i\n{BOUNDS}y[i,c] = sum(p, v[p]*x[idx1[p],c]) {{id=row,dep=b:e}}\n"
            "end\nout[i0,c0] = 3*y[i0,c0] + out[i0,c0] {dep=row}",
            {**MATRICES, "y": "n_i,5"},
        ),
        "out + 3*(A@x)",
    ),
    "in the loop of another instruction": (
        over_rows(
            "y[i,c] = sum(p, v[p]*x[idx1[p],c]) {id=row,dep=b:e}\n"
            "out[i,c] = 3*y[i,c] + out[i,c] {dep=row}",
            {**MATRICES, "y": "n_i,5"},
            domains=[C5],
        ),
        "out + 3*(A@x)",
    ),
}
"""By name, products with a matrix in CSR, and the result in numpy."""


def values_of(kernel, matrix):
    """Arrays and numbers for a kernel over the rows of a matrix, by name."""
    rng, sizes = np.random.default_rng(0), {"n_i": 9, "n_j": 8, "n_c": 6}
    sizes["nnz"] = len(matrix.values)
    given = {"alpha": 3.0, "beta": 0.5, "v": matrix.values, **sizes}
    given["ptr1"] = matrix.pointers.astype(np.int32)
    given["idx1"] = matrix.indices.astype(np.int32)
    for arg in kernel.args:
        if arg.name not in given:
            given[arg.name] = rng.random([int(sizes.get(str(n), n)) for n in arg.shape])
    return {arg.name: given[arg.name] for arg in kernel.args}


def rows_call(unit, matrix, formula):
    """The arguments of a kernel of :data:`WAYS`, and the result that is right."""
    given = values_of(unit.default_entrypoint, matrix)
    scope = {"np": np, "A": to_dense(matrix), **given}
    return given, eval(formula, {**scope, "out": given["out"].copy()})


FACTORED = """
for p0
  <> i_0 = idx0[p0] {id=i}
  <> b1 = ptr1[p0] {id=b1}
  <> e1 = ptr1[p0+1] {id=e1}
  for p1
    <> j_0 = idx1[p1] {id=j}
    <> b2 = ptr2[p1] {id=b2}
    <> e2 = ptr2[p1+1] {id=e2}
    for a0
      t[a0] = 0 {id=t0}
    end
    for p2, a
      t[a] = t[a] + v[p2]*D1[idx2[p2],a] {id=t,dep=t0:b2:e2}
    end
    for a1
      out[i_0,a1] = out[i_0,a1] + t[a1]*D0[j_0,a1] {id=row,dep=i:j:t:b1:e1}
    end
  end
end
"""


def factored_mttkrp():
    """MTTKRP of order 3 with a private row of sums for each fiber."""
    shapes = {
        "v": "nnz", "out": "n_i,6", "idx0": "nodes0", "idx1": "nodes1", "idx2": "nnz",
        "ptr1": "nodes0+1", "ptr2": "nodes1+1", "D0": "n_j,6", "D1": "n_k,6",
    }  # fmt: skip
    domains = [
        "{[p0]: 0<=p0<nodes0}",
        "[b1,e1] -> {[p1]: b1<=p1<e1}",
        "[b2,e2] -> {[p2]: b2<=p2<e2}",
        "{[a,a0,a1]: 0<=a,a0,a1<6}",
    ]
    row = lp.TemporaryVariable("t", np.float64, shape=(6,))
    return made(domains, FACTORED, shapes, temporaries=[row])
