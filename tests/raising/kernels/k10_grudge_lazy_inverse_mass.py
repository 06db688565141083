"""grudge.op.inverse_mass compiled with the lazy PytatoPyOpenCLArrayContext: what
transform_loopy_program receives.

loopy 2025.2, pytato b25c311 (2026-03-12), arraycontext 8c00ed8, meshmode 33d5f48,
grudge 74c943c; 3D simplices, order 4, 1296 elements.
"""

from tests.raising.kernels.writing import NO_LOOP, ON_ELEMENTS, array, box, make, store


def build():
    e, i = "_pt_out_0_dim0", "_pt_out_0_dim1"
    product = (
        f"((1.0/area_el_vol[{e}, 0])*_pt_data[{i}, _pt_sum_r0])"
        f"*_actx_in_0_0[{e}, _pt_sum_r0]"
    )
    return make(
        [NO_LOOP, box(_pt_sum_r0=35), box(**{e: 1296, i: 35})],
        [store(f"_pt_out_0[{e}, {i}]", f"reduce(sum, [_pt_sum_r0], {product})")],
        [
            array("area_el_vol", 1296, 1),
            array("_pt_data", 35, 35),
            array("_actx_in_0_0", 1296, 35),
            array("_pt_out_0", 1296, 35, is_output=True, tags=ON_ELEMENTS),
        ],
        "actx_compiled_lambda",
    )
