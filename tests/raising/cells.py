"""Kernels of one cell for four shapes of cells, as a form compiler writes them.

On simplices the geometry is one map for the cell; on quadrilaterals and hexahedra it is
computed at every point. The values of the tables are random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import comb

import loopy as lp

from tests.raising.local_kernels import Line, factorized_mass_action, local_kernel

__all__ = ["CELLS", "FORMS", "KERNELS", "Cell"]


@dataclass(frozen=True)
class Cell:
    """A shape of cells.

    Attributes:
        points: of quadrature, for the orders from 1 on.
    """

    dimension: int
    is_simplex: bool
    points: tuple[int, ...]

    @property
    def n_vertices(self) -> int:
        return self.dimension + 1 if self.is_simplex else 2**self.dimension

    def n_basis(self, order: int) -> int:
        """The functions of the basis of an order."""
        n = self.dimension
        return comb(order + n, n) if self.is_simplex else (order + 1) ** n


CELLS = {
    "triangle": Cell(2, True, (3, 6, 12, 16)),
    "tetrahedron": Cell(3, True, (4, 14, 24, 46)),
    "quadrilateral": Cell(2, False, (4, 9, 16, 25)),
    "hexahedron": Cell(3, False, (8, 27, 64, 125)),
}


@dataclass(frozen=True)
class _Parts:
    """What the forms share: statements, extents of loops and shapes of tables."""

    cell: Cell
    n_points: int
    n_basis: int
    lines: list[Line]
    extents: dict[str, int]
    tables: dict[str, tuple[int, ...]]

    @property
    def axes(self) -> range:
        return range(self.cell.dimension)

    def kernel(
        self,
        lines: list[Line],
        shapes: dict[str, tuple[int, ...]],
        loops: str,
        private: tuple[str, ...] = (),
    ) -> lp.TranslationUnit:
        n = self.n_basis
        coordinates = (self.cell.dimension * self.cell.n_vertices,)
        return local_kernel(
            [*self.lines, *lines],
            {**self.extents, "ip": self.n_points, **dict.fromkeys(loops, n)},
            {**shapes, "coords": coordinates},
            self.tables,
            dict.fromkeys(private, (n,)),
        )


def _parts(cell: Cell, order: int, *, has_values: bool, has_slopes: bool) -> _Parts:
    n_points, n_basis = cell.points[order - 1], cell.n_basis(order)
    of_basis = [f"d{a}" for a in range(cell.dimension)] if has_slopes else []
    of_basis += ["p"] if has_values else []
    tables = {"w": (n_points,), **dict.fromkeys(of_basis, (n_points, n_basis))}
    lines, extents = _jacobian(cell)
    if not cell.is_simplex:
        of_vertices = [f"g{b}" for b in range(cell.dimension)]
        tables |= dict.fromkeys(of_vertices, (n_points, cell.n_vertices))
    lines += _inverse(cell.dimension, "" if cell.is_simplex else "ip", has_slopes)
    lines.append(("weight = absdet*w[ip]", "ip"))
    return _Parts(cell, n_points, n_basis, lines, extents, tables)


def _jacobian(cell: Cell) -> tuple[list[Line], dict[str, int]]:
    """Differences of vertices, or sums over them at every point."""
    n = cell.dimension
    places = [(a, b) for a in range(n) for b in range(n)]
    if cell.is_simplex:
        return [
            (f"j{a}{b} = coords[{n*(b + 1) + a}] + -1.0*coords[{a}]", "")
            for a, b in places
        ], {}  # fmt: skip
    lines = []
    for a, b in places:
        name, loop = f"j{a}{b}", f"v{a}{b}"
        lines.append((f"{name} = 0.0", "ip"))
        lines.append((
            f"{name} = {name} + coords[{n}*{loop} + {a}]*g{b}[ip, {loop}]", f"ip:{loop}"
        ))  # fmt: skip
    return lines, {f"v{a}{b}": cell.n_vertices for a, b in places}


def _inverse(n: int, loops: str, has_slopes: bool) -> list[Line]:
    """The determinant, and the inverse ``k`` where slopes are needed."""

    def minor(a: int, b: int) -> str:
        """With its sign, of the transposed matrix."""
        if n == 2:
            return f"{'-1.0*' if a != b else ''}j{1 - b}{1 - a}"
        r, s = (b + 1) % 3, (b + 2) % 3
        p, q = (a + 1) % 3, (a + 2) % 3
        return f"(j{r}{p}*j{s}{q} + -1.0*j{r}{q}*j{s}{p})"

    det = " + ".join(f"j0{b}*{minor(b, 0)}" for b in range(n))
    lines = [(f"det = {det}", loops), ("absdet = fabs(det)", loops)]
    if has_slopes:
        lines.append(("over = 1.0 / det", loops))
        lines += [
            (f"k{a}{b} = {minor(a, b)}*over", loops)
            for a in range(n)
            for b in range(n)
        ]  # fmt: skip
    return lines


def mass(cell: Cell, order: int) -> lp.TranslationUnit:
    """One sum with three factors."""
    parts = _parts(cell, order, has_values=True, has_slopes=False)
    lines = [
        ("t0[l] = weight*p[ip, l]", "ip:l"),
        ("A[0 + j*1, 0 + k*1] = A[0 + j*1, 0 + k*1] + t0[k]*p[ip, j]", "ip:j:k"),
    ]
    n = parts.n_basis
    return parts.kernel(lines, {"A": (n, n)}, "jkl", ("t0",))


def laplace(cell: Cell, order: int) -> lp.TranslationUnit:
    """One sum for each direction, of combinations of slopes."""
    parts = _parts(cell, order, has_values=False, has_slopes=True)

    def slope(a: int, iname: str) -> str:
        return " + ".join(f"k{b}{a}*d{b}[ip, {iname}]" for b in parts.axes)

    lines: list[Line] = []
    for a in parts.axes:
        loop = "lmn"[a]
        lines.append((f"t{a}[{loop}] = {slope(a, loop)}", f"ip:{loop}"))
    lines += [(f"s{a} = weight*({slope(a, 'j')})", "ip:j") for a in parts.axes]
    added = " + ".join(f"t{a}[k]*s{a}" for a in parts.axes)
    lines.append((f"A[0 + j*1, 0 + k*1] = A[0 + j*1, 0 + k*1] + {added}", "ip:j:k"))
    n = parts.n_basis
    return parts.kernel(
        lines,
        {"A": (n, n)},
        "jk" + "lmn"[: cell.dimension],
        tuple(f"t{a}" for a in parts.axes),
    )


def helmholtz_action(cell: Cell, order: int) -> lp.TranslationUnit:
    """A value and slopes at each point, which one more sum brings back."""
    parts = _parts(cell, order, has_values=True, has_slopes=True)
    axes = parts.axes
    lines: list[Line] = [("u = 0.0", "ip"), *((f"u{b} = 0.0", "ip") for b in axes)]
    lines.append(("u = u + p[ip, i]*w_0[0 + i]", "ip:i"))
    lines += [(f"u{b} = u{b} + d{b}[ip, i]*w_0[0 + i]", "ip:i") for b in axes]
    for a in axes:
        lines.append((f"s{a} = {' + '.join(f'k{b}{a}*u{b}' for b in axes)}", "ip"))
    for b in axes:
        flux = " + ".join(f"k{b}{a}*s{a}" for a in axes)
        lines.append((f"f{b} = weight*({flux})", "ip"))
    lines.append(("f = weight*u", "ip"))
    terms = " + ".join(["p[ip, j]*f", *(f"d{b}[ip, j]*f{b}" for b in axes)])
    lines.append((f"A[0 + j*1] = A[0 + j*1] + {terms}", "ip:j"))
    n = parts.n_basis
    return parts.kernel(lines, {"A": (n,), "w_0": (n,)}, "ij")


FORMS: dict[str, Callable[[Cell, int], lp.TranslationUnit]] = {
    "mass": mass,
    "Laplace": laplace,
    "Helmholtz action": helmholtz_action,
}

KERNELS: dict[str, Callable[[], lp.TranslationUnit]] = {
    f"{name} of order {order}": partial(make, CELLS["triangle"], order)
    for name, make in FORMS.items()
    for order in (1, 2, 3)
} | {
    f"factorized mass action of order {order}": partial(
        factorized_mass_action, order + 2, order + 1
    )
    for order in (1, 2, 3)
}
