"""The extension of feinsum; everything else is in ``pyproject.toml``."""

import numpy as np
from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "feinsum.contraction._pairwise",
            sources=[
                "feinsum/contraction/einsum.c",
                "feinsum/contraction/einsum_large.c",
                "feinsum/contraction/large_network.c",
                "feinsum/contraction/network.c",
                "feinsum/contraction/pairwise.c",
                "feinsum/contraction/pairwise_groups.c",
                "feinsum/contraction/pairwise_passes.c",
                "feinsum/contraction/pairwise_run.c",
            ],
            depends=[
                "feinsum/contraction/calls.h",
                "feinsum/contraction/large_network.h",
                "feinsum/contraction/network.h",
                "feinsum/contraction/pairwise.h",
                "feinsum/contraction/pairwise_kernel.h",
                "feinsum/contraction/pairwise_packed.h",
                "feinsum/contraction/pairwise_problem.h",
                "feinsum/contraction/pairwise_tiles.h",
            ],
            include_dirs=[np.get_include()],
            # instruction sets are chosen when it is loaded: no -march=native
            extra_compile_args=[
                "-O3",
                "-std=gnu11",
                "-fno-math-errno",
                # libraries may export functions with the names of ours
                "-fvisibility=hidden",
            ],
            optional=True,  # numpy computes what it would, slower
        )
    ]
)
