"""Products of matrices by the library of the vendor, between two launches.

Source: NVIDIA, cuBLAS, "cublas<t>gemmStridedBatched()".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import loopy as lp
from pymbolic import primitives as p

from feinsum.targets.cuda.gemm import MatrixProduct

__all__ = ["MATRICES", "multiply_matrices"]

MATRICES = (
    "10_feinsum_matrix_products",
    """\
#if !defined(feinsum_has_cuda)
#error "this recipe takes CUDA and cuBLAS; take gpu_product"
#endif
""",
)


def multiply_matrices(
    product: MatrixProduct,
    n_axes: int,
    insn_id: str,
    _loops: Sequence[str],
    after: Collection[str],
) -> lp.CInstruction:
    """Let the library multiply whole arrays.

    Rewrite::

        for s:  result[s] = left[s] @ right[s]

        (a launch of its own, which the library makes)

    No other statement may be in this launch. The kernel needs ``MATRICES``.

    Args:
        n_axes: of the result.
    """
    return lp.CInstruction(
        [],
        "/* cuBLAS multiplies */;",
        id=insn_id,
        read_variables=frozenset({product.left, product.right}),
        assignees=(p.Variable(product.result)[(0,) * n_axes],),
        depends_on=frozenset(after),
        tags=frozenset({product}),
    )
