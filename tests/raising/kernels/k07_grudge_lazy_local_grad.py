"""grudge.op.local_grad compiled with the lazy PytatoPyOpenCLArrayContext: what transform_loopy_program receives.
loopy 2025.2, pytato b25c311 (2026-03-12), arraycontext 8c00ed8, meshmode 33d5f48, grudge 74c943c; 3D simplices, order 4, 1296 elements.
"""

import loopy as lp
import loopy.symbolic as ls
import numpy as np
import pymbolic.primitives as p
from loopy.symbolic import parse
from pymbolic.primitives import Variable as v

from tests.raising.kernels.client_support import NameHint


def build():
    knls = []
    knl = lp.make_kernel(
        [
            "{  :  }",
            "{ [_pt_sum_r0, _pt_sum_r1, _pt_sum_r0_0, _pt_sum_r1_0, _pt_sum_r0_1, _pt_sum_r1_1] : 0 <= _pt_sum_r0 <= 2 and 0 <= _pt_sum_r1 <= 34 and 0 <= _pt_sum_r0_0 <= 2 and 0 <= _pt_sum_r1_0 <= 34 and 0 <= _pt_sum_r0_1 <= 2 and 0 <= _pt_sum_r1_1 <= 34 }",
            "{ [_pt_out_2_0_dim0, _pt_out_2_0_dim1] : 0 <= _pt_out_2_0_dim0 <= 1295 and 0 <= _pt_out_2_0_dim1 <= 34 }",
            "{ [_pt_out_1_0_dim0, _pt_out_1_0_dim1] : 0 <= _pt_out_1_0_dim0 <= 1295 and 0 <= _pt_out_1_0_dim1 <= 34 }",
            "{ [_pt_out_0_0_dim0, _pt_out_0_0_dim1] : 0 <= _pt_out_0_0_dim0 <= 1295 and 0 <= _pt_out_0_0_dim1 <= 34 }",
        ],
        [
            lp.Assignment(
                parse("_pt_out_2_0[_pt_out_2_0_dim0, _pt_out_2_0_dim1]"),
                ls.Reduction(
                    "sum",
                    ("_pt_sum_r0", "_pt_sum_r1"),
                    p.Product(
                        (
                            p.Product(
                                (
                                    v("inv_metric_deriv_vol")[
                                        2, v("_pt_sum_r0"), v("_pt_out_2_0_dim0"), 0
                                    ],
                                    v("_pt_data")[
                                        v("_pt_sum_r0"),
                                        v("_pt_out_2_0_dim1"),
                                        v("_pt_sum_r1"),
                                    ],
                                )
                            ),
                            v("_actx_in_0_0")[v("_pt_out_2_0_dim0"), v("_pt_sum_r1")],
                        )
                    ),
                    allow_simultaneous=False,
                ),
                id="_pt_out_2_0_store",
                depends_on=frozenset([]),
                within_inames=frozenset(["_pt_out_2_0_dim0", "_pt_out_2_0_dim1"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out_1_0[_pt_out_1_0_dim0, _pt_out_1_0_dim1]"),
                ls.Reduction(
                    "sum",
                    ("_pt_sum_r0_0", "_pt_sum_r1_0"),
                    p.Product(
                        (
                            p.Product(
                                (
                                    v("inv_metric_deriv_vol")[
                                        1, v("_pt_sum_r0_0"), v("_pt_out_1_0_dim0"), 0
                                    ],
                                    v("_pt_data")[
                                        v("_pt_sum_r0_0"),
                                        v("_pt_out_1_0_dim1"),
                                        v("_pt_sum_r1_0"),
                                    ],
                                )
                            ),
                            v("_actx_in_0_0")[v("_pt_out_1_0_dim0"), v("_pt_sum_r1_0")],
                        )
                    ),
                    allow_simultaneous=False,
                ),
                id="_pt_out_1_0_store",
                depends_on=frozenset([]),
                within_inames=frozenset(["_pt_out_1_0_dim0", "_pt_out_1_0_dim1"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out_0_0[_pt_out_0_0_dim0, _pt_out_0_0_dim1]"),
                ls.Reduction(
                    "sum",
                    ("_pt_sum_r0_1", "_pt_sum_r1_1"),
                    p.Product(
                        (
                            p.Product(
                                (
                                    v("inv_metric_deriv_vol")[
                                        0, v("_pt_sum_r0_1"), v("_pt_out_0_0_dim0"), 0
                                    ],
                                    v("_pt_data")[
                                        v("_pt_sum_r0_1"),
                                        v("_pt_out_0_0_dim1"),
                                        v("_pt_sum_r1_1"),
                                    ],
                                )
                            ),
                            v("_actx_in_0_0")[v("_pt_out_0_0_dim0"), v("_pt_sum_r1_1")],
                        )
                    ),
                    allow_simultaneous=False,
                ),
                id="_pt_out_0_0_store",
                depends_on=frozenset([]),
                within_inames=frozenset(["_pt_out_0_0_dim0", "_pt_out_0_0_dim1"]),
                within_inames_is_final=True,
            ),
        ],
        [
            lp.ArrayArg(
                "inv_metric_deriv_vol",
                dtype=np.dtype("<f8"),
                shape=(3, 3, 1296, 1),
                strides=(
                    3888,
                    1296,
                    1,
                    1,
                ),
                offset=lp.auto,
                address_space=lp.AddressSpace.GLOBAL,
                is_input=True,
                is_output=False,
                tags=frozenset([NameHint("inv_jac_t")]),
            ),
            lp.ArrayArg(
                "_pt_data",
                dtype=np.dtype("<f8"),
                shape=(3, 35, 35),
                strides=(
                    1225,
                    35,
                    1,
                ),
                offset=lp.auto,
                address_space=lp.AddressSpace.GLOBAL,
                is_input=True,
                is_output=False,
                tags=frozenset([NameHint("ref_stiffT_mat")]),
            ),
            lp.ArrayArg(
                "_actx_in_0_0",
                dtype=np.dtype("<f8"),
                shape=(1296, 35),
                strides=(
                    35,
                    1,
                ),
                offset=lp.auto,
                address_space=lp.AddressSpace.GLOBAL,
                is_input=True,
                is_output=False,
            ),
            lp.ArrayArg(
                "_pt_out_2_0",
                dtype=np.dtype("<f8"),
                shape=(1296, 35),
                strides=(
                    35,
                    1,
                ),
                address_space=lp.AddressSpace.GLOBAL,
                is_input=False,
                is_output=True,
            ),
            lp.ArrayArg(
                "_pt_out_1_0",
                dtype=np.dtype("<f8"),
                shape=(1296, 35),
                strides=(
                    35,
                    1,
                ),
                address_space=lp.AddressSpace.GLOBAL,
                is_input=False,
                is_output=True,
            ),
            lp.ArrayArg(
                "_pt_out_0_0",
                dtype=np.dtype("<f8"),
                shape=(1296, 35),
                strides=(
                    35,
                    1,
                ),
                address_space=lp.AddressSpace.GLOBAL,
                is_input=False,
                is_output=True,
            ),
        ],
        name="actx_compiled_lambda",
        lang_version=(2018, 2),
        target=None,
        seq_dependencies=False,
    )
    knls.append(knl)
    return knls[0] if len(knls) == 1 else lp.merge(knls)


if __name__ == "__main__":
    print(build())
