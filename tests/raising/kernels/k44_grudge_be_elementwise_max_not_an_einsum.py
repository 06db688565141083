"""grudge.op.elementwise_max: a maximum is to be refused.

The DAG pipeline of arraycontext@batched_einsum_actx (caaa471), ported to the pytato
named below: einsum outputs are stored, einsum inputs are rules, and axis tags unified.
What transform_loopy_program receives.

loopy 2025.2, pytato b25c311 (2026-03-12), arraycontext 8c00ed8, meshmode 33d5f48,
grudge 74c943c; 3D simplices, order 4, 1296 elements.
"""

import loopy as lp
from pymbolic import var

from tests.raising.kernels.writing import (
    NO_LOOP,
    DiscretizationDOFAxisTag,
    DiscretizationElementAxisTag,
    array,
    box,
    make,
    rule,
    store,
    stored,
)


def build():
    e, i = "_pt_out_0_dim0", "_pt_out_0_dim1"
    largest = "reduce(max, [_pt_max_r0], _pt_subst(_pt_temp_dim0, _pt_max_r0))"
    # subscripts of one entry are tuples here, which the parser makes of no text
    temp = var("_pt_temp")
    unit = make(
        [
            NO_LOOP,
            box(_pt_max_r0=35),
            box(_pt_temp_dim0=1296),
            f"{{ [{e}, {i}] : {i} = 0 and 0 <= {e} < 1296 }}",
        ],
        [
            rule("_pt_subst", "_actx_in_0_0[_0, _1]", 2),
            store("_pt_temp[_pt_temp_dim0]", largest).copy(
                assignee=temp[var("_pt_temp_dim0"),]
            ),
            store(f"_pt_out_0[{e}, {i}]", "0", "_pt_temp").copy(
                expression=temp[var(e),]
            ),
        ],
        [
            array("_actx_in_0_0", 1296, 35),
            array("_pt_out_0", 1296, 1, is_output=True),
            stored("_pt_temp", 1296),
        ],
        "actx_compiled_lambda",
    )
    elements, dofs = DiscretizationElementAxisTag(), DiscretizationDOFAxisTag()
    tags = {"_pt_max_r0": dofs, e: elements, i: dofs, "_pt_temp_dim0": elements}
    return lp.tag_inames(unit, tags)
