"""grudge.op.local_grad of a 3-vector, after Loopy's loop fusion.

The DAG pipeline of arraycontext@batched_einsum_actx (caaa471), ported to the pytato
named below: einsum outputs are stored, einsum inputs are rules, and axis tags unified.
Then ``lp.get_kennedy_unweighted_fusion_candidates`` fused loops as in that branch: what
feinsum is called on.

loopy 2025.2, pytato b25c311 (2026-03-12), arraycontext 8c00ed8, meshmode 33d5f48,
grudge 74c943c; 3D simplices, order 4, 1296 elements.
"""

import islpy as isl

from tests.raising.kernels.writing import (
    NO_LOOP,
    ON_ELEMENTS,
    array,
    box,
    hint,
    make,
    rule,
    store,
    stored,
)

GRADIENTS = {2: "_pt_temp", 1: "_pt_temp_0", 0: "_pt_temp_1"}
"""By component of the vector, where its gradient is stored."""
EMPTY = isl.BasicSet("{ [] : }")


def build():
    inputs = {t: f"_actx_in_0_{t}_0" for t in GRADIENTS}
    outs = {(t, x): f"_pt_out__actx_t{t}_{x}_actx_endt_0"
            for t in GRADIENTS for x in (2, 1, 0)}  # fmt: skip
    fields = {t: f"_pt_subst_{k}" for k, t in enumerate(GRADIENTS, 1)}
    rules = [
        rule("_pt_subst", "inv_metric_deriv_vol[_0, _1, _2, 0]", 3),
        rule("_pt_subst_0", "_pt_data[_0, _1, _2]", 3),
        *(rule(fields[t], f"{inputs[t]}[_0, _1]", 2) for t in GRADIENTS),
    ]
    geometry = "_pt_subst(iambientdim, itopologicaldim, ielement_0)"
    matrix = "_pt_subst_0(itopologicaldim, idof_0, idof_1)"
    instructions, arrays = [], []
    for t, temp in GRADIENTS.items():
        product = f"({geometry}*{matrix})*{fields[t]}(ielement_0, idof_1)"
        value = f"reduce(sum, [itopologicaldim, idof_1], {product})"
        instructions.append(store(f"{temp}[iambientdim, ielement_0, idof_0]", value))
        arrays.append(array(inputs[t], 1296, 35, tags=ON_ELEMENTS))
        for x in (2, 1, 0):
            part = f"{temp}[{x}, ielement, idof]"
            instructions.append(store(f"{outs[t, x]}[ielement, idof]", part, temp))
            arrays.append(array(outs[t, x], 1296, 35, is_output=True))
    return make(
        [
            NO_LOOP,
            box(itopologicaldim=3, idof_1=35),
            *[EMPTY] * 5,
            box(iambientdim=3, ielement_0=1296, idof_0=35),
            *[EMPTY] * 7,
            box(ielement=1296, idof=35),
        ],
        [*rules, *instructions],
        [
            array("inv_metric_deriv_vol", 3, 3, 1296, 1, tags=hint("inv_jac_t")),
            array("_pt_data", 3, 35, 35, tags=hint("ref_stiffT_mat")),
            *arrays,
            *(stored(x, 3, 1296, 35, tags=ON_ELEMENTS) for x in GRADIENTS.values()),
        ],
        "actx_compiled_lambda",
    )
