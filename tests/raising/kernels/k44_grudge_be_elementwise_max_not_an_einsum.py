"""grudge.op.elementwise_max; DAG pipeline of arraycontext@batched_einsum_actx (caaa471) ported to the pytato named below (einsum outputs stored, einsum inputs as ImplSubstitution, axis tags unified).
What transform_loopy_program receives.
loopy 2025.2, pytato b25c311 (2026-03-12), arraycontext 8c00ed8, meshmode 33d5f48, grudge 74c943c; 3D simplices, order 4, 1296 elements.
A max reduction: must be refused.
"""

import loopy as lp
import numpy as np
from loopy.symbolic import parse
from pymbolic.primitives import Variable as v

from tests.raising.kernels.client_support import (
    DiscretizationDOFAxisTag,
    DiscretizationElementAxisTag,
)


def build():
    knls = []
    knl = lp.make_kernel(
        [
            "{  :  }",
            "{ [_pt_max_r0] : 0 <= _pt_max_r0 <= 34 }",
            "{ [_pt_temp_dim0] : 0 <= _pt_temp_dim0 <= 1295 }",
            "{ [_pt_out_0_dim0, _pt_out_0_dim1] : _pt_out_0_dim1 = 0 and 0 <= _pt_out_0_dim0 <= 1295 }",
        ],
        [
            lp.SubstitutionRule(
                "_pt_subst", ("_0", "_1"), parse("_actx_in_0_0[_0, _1]")
            ),
            lp.Assignment(
                v("_pt_temp")[v("_pt_temp_dim0"),],
                parse(
                    "reduce(max, [_pt_max_r0], _pt_subst(_pt_temp_dim0, _pt_max_r0))"
                ),
                id="_pt_temp_store",
                depends_on=frozenset([]),
                within_inames=frozenset(["_pt_temp_dim0"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out_0[_pt_out_0_dim0, _pt_out_0_dim1]"),
                v("_pt_temp")[v("_pt_out_0_dim0"),],
                id="_pt_out_0_store",
                depends_on=frozenset(["_pt_temp_store"]),
                within_inames=frozenset(["_pt_out_0_dim0", "_pt_out_0_dim1"]),
                within_inames_is_final=True,
            ),
        ],
        [
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
                shape=(1296, 1),
                strides=(
                    1,
                    1,
                ),
                address_space=lp.AddressSpace.GLOBAL,
                is_input=False,
                is_output=True,
            ),
            lp.TemporaryVariable(
                "_pt_temp",
                dtype=np.dtype("<f8"),
                shape=(1296,),
                strides=(1,),
                address_space=lp.AddressSpace.GLOBAL,
            ),
        ],
        name="actx_compiled_lambda",
        lang_version=(2018, 2),
        target=None,
        seq_dependencies=False,
    )
    knl = lp.tag_inames(
        knl, {"_pt_max_r0": DiscretizationDOFAxisTag()}, ignore_nonexistent=True
    )
    knl = lp.tag_inames(
        knl, {"_pt_out_0_dim0": DiscretizationElementAxisTag()}, ignore_nonexistent=True
    )
    knl = lp.tag_inames(
        knl, {"_pt_out_0_dim1": DiscretizationDOFAxisTag()}, ignore_nonexistent=True
    )
    knl = lp.tag_inames(
        knl, {"_pt_temp_dim0": DiscretizationElementAxisTag()}, ignore_nonexistent=True
    )
    knls.append(knl)
    return knls[0] if len(knls) == 1 else lp.merge(knls)


if __name__ == "__main__":
    print(build())
