"""grudge.op.local_grad of a 3-vector; DAG pipeline of arraycontext@batched_einsum_actx (caaa471) ported to the pytato named below (einsum outputs stored, einsum inputs as ImplSubstitution, axis tags unified);
then Kennedy loop fusion (lp.get_kennedy_unweighted_fusion_candidates) as in that branch: what feinsum is called on.
loopy 2025.2, pytato b25c311 (2026-03-12), arraycontext 8c00ed8, meshmode 33d5f48, grudge 74c943c; 3D simplices, order 4, 1296 elements.
"""

import islpy as isl
import loopy as lp
import loopy.symbolic as ls
import numpy as np
import pymbolic.primitives as p
from loopy.symbolic import parse
from pymbolic.primitives import Variable as v

from tests.raising.kernels.client_support import FirstAxisIsElementsTag, NameHint


def build():
    knls = []
    knl = lp.make_kernel(
        [
            "{  :  }",
            "{ [itopologicaldim, idof_1] : 0 <= itopologicaldim <= 2 and 0 <= idof_1 <= 34 }",
            isl.BasicSet("{ [] :  }"),
            isl.BasicSet("{ [] :  }"),
            isl.BasicSet("{ [] :  }"),
            isl.BasicSet("{ [] :  }"),
            isl.BasicSet("{ [] :  }"),
            "{ [iambientdim, ielement_0, idof_0] : 0 <= iambientdim <= 2 and 0 <= ielement_0 <= 1295 and 0 <= idof_0 <= 34 }",
            isl.BasicSet("{ [] :  }"),
            isl.BasicSet("{ [] :  }"),
            isl.BasicSet("{ [] :  }"),
            isl.BasicSet("{ [] :  }"),
            isl.BasicSet("{ [] :  }"),
            isl.BasicSet("{ [] :  }"),
            isl.BasicSet("{ [] :  }"),
            "{ [ielement, idof] : 0 <= ielement <= 1295 and 0 <= idof <= 34 }",
        ],
        [
            lp.SubstitutionRule(
                "_pt_subst",
                ("_0", "_1", "_2"),
                parse("inv_metric_deriv_vol[_0, _1, _2, 0]"),
            ),
            lp.SubstitutionRule(
                "_pt_subst_0", ("_0", "_1", "_2"), parse("_pt_data[_0, _1, _2]")
            ),
            lp.SubstitutionRule(
                "_pt_subst_1", ("_0", "_1"), parse("_actx_in_0_2_0[_0, _1]")
            ),
            lp.SubstitutionRule(
                "_pt_subst_2", ("_0", "_1"), parse("_actx_in_0_1_0[_0, _1]")
            ),
            lp.SubstitutionRule(
                "_pt_subst_3", ("_0", "_1"), parse("_actx_in_0_0_0[_0, _1]")
            ),
            lp.Assignment(
                parse("_pt_temp[iambientdim, ielement_0, idof_0]"),
                ls.Reduction(
                    "sum",
                    ("itopologicaldim", "idof_1"),
                    p.Product(
                        (
                            p.Product(
                                (
                                    p.Call(
                                        v("_pt_subst"),
                                        (
                                            v("iambientdim"),
                                            v("itopologicaldim"),
                                            v("ielement_0"),
                                        ),
                                    ),
                                    p.Call(
                                        v("_pt_subst_0"),
                                        (
                                            v("itopologicaldim"),
                                            v("idof_0"),
                                            v("idof_1"),
                                        ),
                                    ),
                                )
                            ),
                            p.Call(
                                v("_pt_subst_1"),
                                (
                                    v("ielement_0"),
                                    v("idof_1"),
                                ),
                            ),
                        )
                    ),
                    allow_simultaneous=False,
                ),
                id="_pt_temp_store",
                depends_on=frozenset([]),
                within_inames=frozenset(["iambientdim", "idof_0", "ielement_0"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out__actx_t2_2_actx_endt_0[ielement, idof]"),
                parse("_pt_temp[2, ielement, idof]"),
                id="_pt_out__actx_t2_2_actx_endt_0_store",
                depends_on=frozenset(["_pt_temp_store"]),
                within_inames=frozenset(["idof", "ielement"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out__actx_t2_1_actx_endt_0[ielement, idof]"),
                parse("_pt_temp[1, ielement, idof]"),
                id="_pt_out__actx_t2_1_actx_endt_0_store",
                depends_on=frozenset(["_pt_temp_store"]),
                within_inames=frozenset(["idof", "ielement"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out__actx_t2_0_actx_endt_0[ielement, idof]"),
                parse("_pt_temp[0, ielement, idof]"),
                id="_pt_out__actx_t2_0_actx_endt_0_store",
                depends_on=frozenset(["_pt_temp_store"]),
                within_inames=frozenset(["idof", "ielement"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_temp_0[iambientdim, ielement_0, idof_0]"),
                ls.Reduction(
                    "sum",
                    ("itopologicaldim", "idof_1"),
                    p.Product(
                        (
                            p.Product(
                                (
                                    p.Call(
                                        v("_pt_subst"),
                                        (
                                            v("iambientdim"),
                                            v("itopologicaldim"),
                                            v("ielement_0"),
                                        ),
                                    ),
                                    p.Call(
                                        v("_pt_subst_0"),
                                        (
                                            v("itopologicaldim"),
                                            v("idof_0"),
                                            v("idof_1"),
                                        ),
                                    ),
                                )
                            ),
                            p.Call(
                                v("_pt_subst_2"),
                                (
                                    v("ielement_0"),
                                    v("idof_1"),
                                ),
                            ),
                        )
                    ),
                    allow_simultaneous=False,
                ),
                id="_pt_temp_0_store",
                depends_on=frozenset([]),
                within_inames=frozenset(["iambientdim", "idof_0", "ielement_0"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out__actx_t1_2_actx_endt_0[ielement, idof]"),
                parse("_pt_temp_0[2, ielement, idof]"),
                id="_pt_out__actx_t1_2_actx_endt_0_store",
                depends_on=frozenset(["_pt_temp_0_store"]),
                within_inames=frozenset(["idof", "ielement"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out__actx_t1_1_actx_endt_0[ielement, idof]"),
                parse("_pt_temp_0[1, ielement, idof]"),
                id="_pt_out__actx_t1_1_actx_endt_0_store",
                depends_on=frozenset(["_pt_temp_0_store"]),
                within_inames=frozenset(["idof", "ielement"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out__actx_t1_0_actx_endt_0[ielement, idof]"),
                parse("_pt_temp_0[0, ielement, idof]"),
                id="_pt_out__actx_t1_0_actx_endt_0_store",
                depends_on=frozenset(["_pt_temp_0_store"]),
                within_inames=frozenset(["idof", "ielement"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_temp_1[iambientdim, ielement_0, idof_0]"),
                ls.Reduction(
                    "sum",
                    ("itopologicaldim", "idof_1"),
                    p.Product(
                        (
                            p.Product(
                                (
                                    p.Call(
                                        v("_pt_subst"),
                                        (
                                            v("iambientdim"),
                                            v("itopologicaldim"),
                                            v("ielement_0"),
                                        ),
                                    ),
                                    p.Call(
                                        v("_pt_subst_0"),
                                        (
                                            v("itopologicaldim"),
                                            v("idof_0"),
                                            v("idof_1"),
                                        ),
                                    ),
                                )
                            ),
                            p.Call(
                                v("_pt_subst_3"),
                                (
                                    v("ielement_0"),
                                    v("idof_1"),
                                ),
                            ),
                        )
                    ),
                    allow_simultaneous=False,
                ),
                id="_pt_temp_1_store",
                depends_on=frozenset([]),
                within_inames=frozenset(["iambientdim", "idof_0", "ielement_0"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out__actx_t0_2_actx_endt_0[ielement, idof]"),
                parse("_pt_temp_1[2, ielement, idof]"),
                id="_pt_out__actx_t0_2_actx_endt_0_store",
                depends_on=frozenset(["_pt_temp_1_store"]),
                within_inames=frozenset(["idof", "ielement"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out__actx_t0_1_actx_endt_0[ielement, idof]"),
                parse("_pt_temp_1[1, ielement, idof]"),
                id="_pt_out__actx_t0_1_actx_endt_0_store",
                depends_on=frozenset(["_pt_temp_1_store"]),
                within_inames=frozenset(["idof", "ielement"]),
                within_inames_is_final=True,
            ),
            lp.Assignment(
                parse("_pt_out__actx_t0_0_actx_endt_0[ielement, idof]"),
                parse("_pt_temp_1[0, ielement, idof]"),
                id="_pt_out__actx_t0_0_actx_endt_0_store",
                depends_on=frozenset(["_pt_temp_1_store"]),
                within_inames=frozenset(["idof", "ielement"]),
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
                "_actx_in_0_2_0",
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
                tags=frozenset([FirstAxisIsElementsTag()]),
            ),
            lp.ArrayArg(
                "_pt_out__actx_t2_2_actx_endt_0",
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
                "_pt_out__actx_t2_1_actx_endt_0",
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
                "_pt_out__actx_t2_0_actx_endt_0",
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
                "_actx_in_0_1_0",
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
                tags=frozenset([FirstAxisIsElementsTag()]),
            ),
            lp.ArrayArg(
                "_pt_out__actx_t1_2_actx_endt_0",
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
                "_pt_out__actx_t1_1_actx_endt_0",
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
                "_pt_out__actx_t1_0_actx_endt_0",
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
                "_actx_in_0_0_0",
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
                tags=frozenset([FirstAxisIsElementsTag()]),
            ),
            lp.ArrayArg(
                "_pt_out__actx_t0_2_actx_endt_0",
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
                "_pt_out__actx_t0_1_actx_endt_0",
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
                "_pt_out__actx_t0_0_actx_endt_0",
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
            lp.TemporaryVariable(
                "_pt_temp",
                dtype=np.dtype("<f8"),
                shape=(3, 1296, 35),
                strides=(
                    45360,
                    35,
                    1,
                ),
                address_space=lp.AddressSpace.GLOBAL,
                tags=frozenset([FirstAxisIsElementsTag()]),
            ),
            lp.TemporaryVariable(
                "_pt_temp_0",
                dtype=np.dtype("<f8"),
                shape=(3, 1296, 35),
                strides=(
                    45360,
                    35,
                    1,
                ),
                address_space=lp.AddressSpace.GLOBAL,
                tags=frozenset([FirstAxisIsElementsTag()]),
            ),
            lp.TemporaryVariable(
                "_pt_temp_1",
                dtype=np.dtype("<f8"),
                shape=(3, 1296, 35),
                strides=(
                    45360,
                    35,
                    1,
                ),
                address_space=lp.AddressSpace.GLOBAL,
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
