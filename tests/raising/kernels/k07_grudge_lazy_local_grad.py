"""grudge.op.local_grad compiled with the lazy PytatoPyOpenCLArrayContext: what
transform_loopy_program receives.

loopy 2025.2, pytato b25c311 (2026-03-12), arraycontext 8c00ed8, meshmode 33d5f48,
grudge 74c943c; 3D simplices, order 4, 1296 elements.
"""

from tests.raising.kernels.writing import NO_LOOP, array, box, hint, make, store

SUMS = {2: "", 1: "_0", 0: "_1"}
"""By component, what the names of the inames of its sum end with."""


def build():
    outs = {k: f"_pt_out_{k}_0" for k in SUMS}
    sums = {f"_pt_sum_r{axis}{end}": (3, 35)[axis]
            for end in SUMS.values() for axis in (0, 1)}  # fmt: skip
    return make(
        [
            NO_LOOP,
            box(**sums),
            *(box(**{f"{x}_dim0": 1296, f"{x}_dim1": 35}) for x in outs.values()),
        ],
        [_component(k, out) for k, out in outs.items()],
        [
            array("inv_metric_deriv_vol", 3, 3, 1296, 1, tags=hint("inv_jac_t")),
            array("_pt_data", 3, 35, 35, tags=hint("ref_stiffT_mat")),
            array("_actx_in_0_0", 1296, 35),
            *(array(out, 1296, 35, is_output=True) for out in outs.values()),
        ],
        "actx_compiled_lambda",
    )


def _component(k, out):
    e, i, r, j = f"{out}_dim0", f"{out}_dim1", *(f"_pt_sum_r{x}{SUMS[k]}" for x in "01")
    product = (
        f"(inv_metric_deriv_vol[{k}, {r}, {e}, 0]*_pt_data[{r}, {i}, {j}])"
        f"*_actx_in_0_0[{e}, {j}]"
    )
    return store(f"{out}[{e}, {i}]", f"reduce(sum, [{r}, {j}], {product})")
