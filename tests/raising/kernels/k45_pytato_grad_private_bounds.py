"""pt.generate_loopy(2*g*pt.exp(u) + u*u) with g = pt.einsum('xre,rij,ej->xei', J, D, u), 3D P4, 10000 elements.
pytato 70d844b (2026-06-28), loopy 2025.2.
"""

import loopy as lp
import loopy.symbolic as ls
import numpy as np
import pymbolic.primitives as p
from loopy.symbolic import parse
from pymbolic.primitives import Variable as v


def build():
    knls = []
    knl = lp.make_kernel(
        [
            "{  :  }",
            "{ [_pt_temp_dim0, _pt_temp_dim1, _pt_temp_dim2] : 0 <= _pt_temp_dim0 <= 2 and 0 <= _pt_temp_dim1 <= 9999 and 0 <= _pt_temp_dim2 <= 34 }",
            "[_pt_sum_r0_lbound, _pt_sum_r0_ubound, _pt_sum_r1_lbound, _pt_sum_r1_ubound] -> { [_pt_sum_r0, _pt_sum_r1] : _pt_sum_r0_lbound <= _pt_sum_r0 < _pt_sum_r0_ubound and _pt_sum_r1_lbound <= _pt_sum_r1 < _pt_sum_r1_ubound }",
            "{ [_pt_out_dim0, _pt_out_dim1, _pt_out_dim2] : 0 <= _pt_out_dim0 <= 2 and 0 <= _pt_out_dim1 <= 9999 and 0 <= _pt_out_dim2 <= 34 }",
        ],
        [
            lp.Assignment(
                parse("_pt_sum_r0_lbound"),
                0,
                id="_pt_sum_r0_lbound_store",
                depends_on=frozenset([]),
                within_inames=frozenset(
                    ["_pt_temp_dim0", "_pt_temp_dim1", "_pt_temp_dim2"]
                ),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_sum_r0_ubound"),
                3,
                id="_pt_sum_r0_ubound_store",
                depends_on=frozenset([]),
                within_inames=frozenset(
                    ["_pt_temp_dim0", "_pt_temp_dim1", "_pt_temp_dim2"]
                ),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_sum_r1_lbound"),
                0,
                id="_pt_sum_r1_lbound_store",
                depends_on=frozenset([]),
                within_inames=frozenset(
                    ["_pt_temp_dim0", "_pt_temp_dim1", "_pt_temp_dim2"]
                ),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_sum_r1_ubound"),
                35,
                id="_pt_sum_r1_ubound_store",
                depends_on=frozenset([]),
                within_inames=frozenset(
                    ["_pt_temp_dim0", "_pt_temp_dim1", "_pt_temp_dim2"]
                ),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_temp[_pt_temp_dim0, _pt_temp_dim1, _pt_temp_dim2]"),
                ls.Reduction(
                    "sum",
                    ("_pt_sum_r0", "_pt_sum_r1"),
                    p.Product(
                        (
                            p.Product(
                                (
                                    v("J")[
                                        v("_pt_temp_dim0"),
                                        v("_pt_sum_r0"),
                                        v("_pt_temp_dim1"),
                                    ],
                                    v("D")[
                                        v("_pt_sum_r0"),
                                        v("_pt_temp_dim2"),
                                        v("_pt_sum_r1"),
                                    ],
                                )
                            ),
                            v("u")[v("_pt_temp_dim1"), v("_pt_sum_r1")],
                        )
                    ),
                    allow_simultaneous=False,
                ),
                id="_pt_temp_store",
                depends_on=frozenset(
                    [
                        "_pt_sum_r0_lbound_store",
                        "_pt_sum_r0_ubound_store",
                        "_pt_sum_r1_lbound_store",
                        "_pt_sum_r1_ubound_store",
                    ]
                ),
                within_inames=frozenset(
                    ["_pt_temp_dim0", "_pt_temp_dim1", "_pt_temp_dim2"]
                ),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out[_pt_out_dim0, _pt_out_dim1, _pt_out_dim2]"),
                p.Sum((p.Product((p.Product((2.0, parse("_pt_temp[_pt_out_dim0, _pt_out_dim1, _pt_out_dim2]"))), parse("exp(u[_pt_out_dim1, _pt_out_dim2])"))), parse("u[_pt_out_dim1, _pt_out_dim2]*u[_pt_out_dim1, _pt_out_dim2]"))),
                id="_pt_out_store",
                depends_on=frozenset(["_pt_temp_store"]),
                within_inames=frozenset(
                    ["_pt_out_dim0", "_pt_out_dim1", "_pt_out_dim2"]
                ),
                within_inames_is_final=True,
            ),
        ],
        [
            lp.ArrayArg(
                "J",
                dtype=np.dtype("<f8"),
                shape=(3, 3, 10000),
                strides=(
                    30000,
                    10000,
                    1,
                ),
                offset=lp.auto,
                address_space=lp.AddressSpace.GLOBAL,
                is_input=True,
                is_output=False,
            ),
            lp.ArrayArg(
                "D",
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
            ),
            lp.ArrayArg(
                "u",
                dtype=np.dtype("<f8"),
                shape=(10000, 35),
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
                "_pt_out",
                dtype=np.dtype("<f8"),
                shape=(3, 10000, 35),
                strides=(
                    350000,
                    35,
                    1,
                ),
                address_space=lp.AddressSpace.GLOBAL,
                is_input=False,
                is_output=True,
            ),
            lp.TemporaryVariable(
                "_pt_sum_r0_lbound",
                dtype=np.dtype("<i8"),
                shape=(),
                address_space=lp.AddressSpace.PRIVATE,
            ),
            lp.TemporaryVariable(
                "_pt_sum_r0_ubound",
                dtype=np.dtype("<i8"),
                shape=(),
                address_space=lp.AddressSpace.PRIVATE,
            ),
            lp.TemporaryVariable(
                "_pt_sum_r1_lbound",
                dtype=np.dtype("<i8"),
                shape=(),
                address_space=lp.AddressSpace.PRIVATE,
            ),
            lp.TemporaryVariable(
                "_pt_sum_r1_ubound",
                dtype=np.dtype("<i8"),
                shape=(),
                address_space=lp.AddressSpace.PRIVATE,
            ),
            lp.TemporaryVariable(
                "_pt_temp",
                dtype=np.dtype("<f8"),
                shape=(3, 10000, 35),
                strides=(
                    350000,
                    35,
                    1,
                ),
                address_space=lp.AddressSpace.GLOBAL,
            ),
        ],
        name="_pt_kernel",
        lang_version=(2018, 2),
        target=None,
        seq_dependencies=False,
    )
    knls.append(knl)
    return knls[0] if len(knls) == 1 else lp.merge(knls)


if __name__ == "__main__":
    print(build())
