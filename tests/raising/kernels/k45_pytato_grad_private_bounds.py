"""pt.generate_loopy(2*g*pt.exp(u) + u*u), where the bounds of sums are private scalars.

g = pt.einsum('xre,rij,ej->xei', J, D, u), 3D P4, 10000 elements.

pytato 70d844b (2026-06-28), loopy 2025.2.
"""

from tests.raising.kernels.k21_pytato_grad import ARRAYS, OUTER, gradient
from tests.raising.kernels.writing import NO_LOOP, box, make, private, store, stored

INNER = ("_pt_temp_dim0", "_pt_temp_dim1", "_pt_temp_dim2")
BOUNDS = {
    "_pt_sum_r0_lbound": 0,
    "_pt_sum_r0_ubound": 3,
    "_pt_sum_r1_lbound": 0,
    "_pt_sum_r1_ubound": 35,
}


def build():
    sums = [f"_pt_sum_r{k}" for k in (0, 1)]
    ranges = " and ".join(f"{r}_lbound <= {r} < {r}_ubound" for r in sums)
    u = f"u[{', '.join(OUTER[1:])}]"
    return make(
        [
            NO_LOOP,
            box(**dict(zip(INNER, (3, 10000, 35), strict=True))),
            f"[{', '.join(BOUNDS)}] -> {{ [{', '.join(sums)}] : {ranges} }}",
            box(**dict(zip(OUTER, (3, 10000, 35), strict=True))),
        ],
        [
            *(store(name, str(n), loops=INNER) for name, n in BOUNDS.items()),
            store(f"_pt_temp[{', '.join(INNER)}]", gradient(INNER), *BOUNDS),
            store(
                f"_pt_out[{', '.join(OUTER)}]",
                f"(2.0*_pt_temp[{', '.join(OUTER)}])*exp({u}) + {u}*{u}",
                "_pt_temp",
            ),
        ],
        [*ARRAYS, *map(private, BOUNDS), stored("_pt_temp", 3, 10000, 35)],
    )
