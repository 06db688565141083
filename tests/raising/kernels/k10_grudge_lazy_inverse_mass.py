"""grudge.op.inverse_mass compiled with the lazy PytatoPyOpenCLArrayContext: what transform_loopy_program receives.
loopy 2025.2, pytato b25c311 (2026-03-12), arraycontext 8c00ed8, meshmode 33d5f48, grudge 74c943c; 3D simplices, order 4, 1296 elements.
"""

import loopy as lp
import loopy.symbolic as ls
import numpy as np
import pymbolic.primitives as p
from loopy.symbolic import parse
from pymbolic.primitives import Variable as v

from tests.raising.kernels.client_support import FirstAxisIsElementsTag


def build():
    knls = []
    knl = lp.make_kernel(
        [
            "{  :  }",
            "{ [_pt_sum_r0] : 0 <= _pt_sum_r0 <= 34 }",
            "{ [_pt_out_0_dim0, _pt_out_0_dim1] : 0 <= _pt_out_0_dim0 <= 1295 and 0 <= _pt_out_0_dim1 <= 34 }",
        ],
        [
            lp.Assignment(
                parse("_pt_out_0[_pt_out_0_dim0, _pt_out_0_dim1]"),
                ls.Reduction(
                    "sum",
                    ("_pt_sum_r0",),
                    p.Product(
                        (
                            p.Product(
                                (
                                    p.Quotient(
                                        1.0, v("area_el_vol")[v("_pt_out_0_dim0"), 0]
                                    ),
                                    v("_pt_data")[v("_pt_out_0_dim1"), v("_pt_sum_r0")],
                                )
                            ),
                            v("_actx_in_0_0")[v("_pt_out_0_dim0"), v("_pt_sum_r0")],
                        )
                    ),
                    allow_simultaneous=False,
                ),
                id="_pt_out_0_store",
                depends_on=frozenset([]),
                within_inames=frozenset(["_pt_out_0_dim0", "_pt_out_0_dim1"]),
                within_inames_is_final=True,
            ),
        ],
        [
            lp.ArrayArg(
                "area_el_vol",
                dtype=np.dtype("<f8"),
                shape=(1296, 1),
                strides=(
                    1,
                    1,
                ),
                offset=lp.auto,
                address_space=lp.AddressSpace.GLOBAL,
                is_input=True,
                is_output=False,
            ),
            lp.ArrayArg(
                "_pt_data",
                dtype=np.dtype("<f8"),
                shape=(35, 35),
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
                "_pt_out_0",
                dtype=np.dtype("<f8"),
                shape=(1296, 35),
                strides=(
                    35,
                    1,
                ),
                address_space=lp.AddressSpace.GLOBAL,
                is_input=False,
                is_output=True,
                tags=frozenset([FirstAxisIsElementsTag()]),
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
