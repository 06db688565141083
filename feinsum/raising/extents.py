"""Iteration domains: which are boxes, and how long each side is."""

from __future__ import annotations

import re
from collections.abc import Collection

import islpy as isl
import loopy as lp
from loopy.symbolic import get_dependencies, pw_aff_to_expr
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.ir import Extent, SizeParam
from feinsum.raising.affine import affine
from feinsum.raising.nest import AffineSize, Expression, in_kernel, names_of

__all__ = ["box_extents", "parameter_of"]


def box_extents(
    kernel: lp.LoopKernel, inames: Collection[str], instruction: str
) -> dict[str, Extent]:
    """The extent of each iname, if their domain is the box ``[0, extent)``.

    Raises:
        NotAnEinsumError: with the rule ``extent`` if an extent is neither a
            number nor a parameter, with ``domain`` if the domain is no box
            (triangular, strided, shifted, empty).
    """
    extents = {name: _extent(kernel, name, instruction) for name in sorted(inames)}
    domain = kernel.get_inames_domain(frozenset(inames))
    others = [
        name for name in domain.get_var_names(isl.dim_type.set) if name not in extents
    ]
    domain = (
        isl.Set.from_basic_set(domain) if isinstance(domain, isl.BasicSet) else domain
    )
    for name in others:
        place = domain.find_dim_by_name(isl.dim_type.set, name)
        domain = domain.project_out(isl.dim_type.set, place, 1)
    if not _is_box(domain, extents, kernel):
        raise NotAnEinsumError(
            f"instruction {instruction!r}: the domain {domain} of its inames is not "
            f"the box {_box_text(extents)}",
            rule="domain",
            instructions=(instruction,),
        )
    return extents


def _extent(kernel: lp.LoopKernel, iname: str, instruction: str) -> Extent:
    try:
        size = pw_aff_to_expr(kernel.get_iname_bounds(iname).size, int_ok=True)
    except (lp.LoopyError, isl.Error, NotImplementedError) as error:
        raise _refuse_extent(iname, f"has no bounds: {error}", instruction) from None
    if isinstance(size, int):
        return size
    extent = parameter_of(size, kernel)
    if extent is not None:
        return extent
    raise _refuse_extent(
        iname,
        f"has extent {size}; expected a number, a size parameter, or a sum of "
        "multiples of these",
        instruction,
    )


def parameter_of(size: Expression, kernel: lp.LoopKernel) -> SizeParam | None:
    """The size parameter that an extent is, or that stands for it."""
    names = get_dependencies(size)
    if names & (kernel.temporary_variables.keys() | kernel.all_inames()):
        return None
    if isinstance(size, p.Variable):
        return SizeParam(size.name)
    known = affine(size, names)
    if known is None:
        return None
    text = known.text()
    name = "_".join(["size", *re.findall(r"\w+", text.replace("-", " minus "))])
    return AffineSize(name, f"({text})")


def _refuse_extent(iname: str, what: str, instruction: str) -> NotAnEinsumError:
    return NotAnEinsumError(
        f"instruction {instruction!r}: iname {iname!r} {what}",
        rule="extent",
        instructions=(instruction,),
    )


def _is_box(domain: isl.Set, extents: dict[str, Extent], kernel: lp.LoopKernel) -> bool:
    names = domain.get_var_names(isl.dim_type.set)
    sizes = {name: in_kernel(extents[name]) for name in names}
    params = frozenset(domain.get_var_names(isl.dim_type.param))
    params = params.union(*map(names_of, sizes.values()))
    bounds = " and ".join(f"0 <= {name} < {sizes[name]}" for name in names) or "true"
    box = isl.Set.read_from_str(
        domain.get_ctx(),
        f"[{', '.join(sorted(params))}] -> {{ [{', '.join(names)}] : {bounds} }}",
    )
    box, domain = isl.align_two(box, domain)
    # equal at the sizes that the kernel assumes; at others, loops may be empty
    assumed = isl.Set.from_params(isl.Set.from_basic_set(kernel.assumptions).params())
    assumed, box = isl.align_two(assumed, box)
    context = assumed.params()
    return bool(
        domain.intersect_params(context).is_equal(box.intersect_params(context))
    )


def _box_text(extents: dict[str, Extent]) -> str:
    return " x ".join(f"0 <= {name} < {extent}" for name, extent in extents.items())
