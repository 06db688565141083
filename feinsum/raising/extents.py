"""Iteration domains: which are boxes, and how long each side is."""

from __future__ import annotations

from collections.abc import Collection

import islpy as isl
import loopy as lp
from loopy.symbolic import pw_aff_to_expr
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.ir import Extent, SizeParam

__all__ = ["box_extents"]


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
    if isinstance(size, p.Variable) and size.name not in kernel.temporary_variables:
        return SizeParam(size.name)
    raise _refuse_extent(
        iname, f"has extent {size}; expected a number or a size parameter", instruction
    )


def _refuse_extent(iname: str, what: str, instruction: str) -> NotAnEinsumError:
    return NotAnEinsumError(
        f"instruction {instruction!r}: iname {iname!r} {what}",
        rule="extent",
        instructions=(instruction,),
    )


def _is_box(domain: isl.Set, extents: dict[str, Extent], kernel: lp.LoopKernel) -> bool:
    names = domain.get_var_names(isl.dim_type.set)
    params = {x.name for x in extents.values() if isinstance(x, SizeParam)}
    params |= set(domain.get_var_names(isl.dim_type.param))
    bounds = " and ".join(f"0 <= {name} < {extents[name]}" for name in names) or "true"
    box = isl.Set.read_from_str(
        domain.get_ctx(),
        f"[{', '.join(sorted(params))}] -> {{ [{', '.join(names)}] : {bounds} }}",
    )
    box, domain = isl.align_two(box, domain)
    assumed = isl.Set.from_params(isl.Set.from_basic_set(kernel.assumptions).params())
    assumed, box = isl.align_two(assumed, box)
    context = assumed.params()
    return bool(
        domain.intersect_params(context).is_equal(box.intersect_params(context))
    )


def _box_text(extents: dict[str, Extent]) -> str:
    return " x ".join(f"0 <= {name} < {extent}" for name, extent in extents.items())
