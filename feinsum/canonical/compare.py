"""Whether two einsums are one workload, and the bijection between them."""

from __future__ import annotations

from feinsum.canonical.form import canonicalize
from feinsum.canonical.invariants import first_difference
from feinsum.canonical.relabeling import Relabeling
from feinsum.errors import CanonicalizationError
from feinsum.ir import BatchedEinsum

__all__ = ["isomorphism"]


def isomorphism(a: BatchedEinsum, b: BatchedEinsum) -> Relabeling | None:
    """A relabeling that makes ``a`` into ``b``; None if they are not isomorphic.

    It goes through the canonical form: there from ``a``, and back to ``b``. It
    is applied to ``a`` before it is returned.

    >>> from feinsum.ir import array, einsum
    >>> a = einsum("ij,j->i", array("A", (3, 4)), array("x", 4))
    >>> b = einsum("p,qp->q", array("v", 4), array("M", (3, 4)))
    >>> dict(isomorphism(a, b).operands)
    {'A': 'M', 'x': 'v'}
    >>> isomorphism(a, einsum("ij->i", array("A", (3, 4)))) is None
    True
    """
    if first_difference(a, b) is not None:
        return None
    there, back = canonicalize(a), canonicalize(b)
    if there.einsum != back.einsum:
        return None
    found = there.relabeling.then(back.relabeling.inverse())
    if found.apply(a) != b:
        raise CanonicalizationError(
            f"the bijection from {a} does not lead to {b}; this is a defect of the "
            "canonical form, please report it"
        )
    return found
