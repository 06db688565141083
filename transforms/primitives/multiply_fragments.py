"""Products of matrices: small ones by tensor cores, others by the vendor's library.

Tensor cores compute in double precision. The 32 lanes of a warp hold the matrices in
registers. Lane ``4*g + t`` holds

- ``left[8*h + g, 4*q + t]`` as entry ``2*q + h`` of the left matrix, of 16 rows,
- ``right[4*q + t, g]`` as entry ``q`` of the right matrix, of 8 columns,
- ``sums[8*h + g, 2*t + c]`` as entry ``2*h + c`` of the sums.

:mod:`feinsum.transforms.gpu.fragments` draws them.

Halves are multiplied 16 terms at a time, with sums in single precision. A lane holds
neighbouring terms in twos:

- ``left[8*h + g, 8*q + 2*t + e]`` as entry ``4*q + 2*h + e``,
- ``right[8*q + 2*t + e, g]`` as entry ``2*q + e``.

Source: NVIDIA, PTX ISA, "Matrix Fragments for mma.m8n8k4 / m16n8k4 / m16n8k8 /
m16n8k16 with .f64 floating point type", "Matrix Fragments for mma.m16n8k16 with
floating point type".

The vendor's library multiplies whole arrays, between two launches of the kernel.

Source: NVIDIA, cuBLAS, "cublas<t>gemmStridedBatched()".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pytools.tag import Tag

from feinsum.targets.cuda.figures import WARP as WARP
from feinsum.transforms.primitives.schedule import add_offset

ROWS, COLUMNS = 16, 8

DEPTHS = (4, 8, 16)
"""Numbers of terms that one instruction can add to each sum."""


def _format_mma(rows: int, depth: int, sums: str, left: str, right: str) -> str:
    """Write one instruction, with C arrays as operands."""
    counts = (rows // 4, rows * depth // WARP, depth // 4)
    registers = [f"{name}[{k}]" for name, n in zip((sums, left, right), counts,
                                                   strict=True)
                 for k in range(n)]  # fmt: skip
    ends = (0, counts[0], counts[0] + counts[1], len(registers))
    operand_lists = [
        "{" + ", ".join(f"%{k}" for k in range(start, end)) + "}"
        for start, end in pairwise(ends)
    ]
    name = f"mma.sync.aligned.m{rows}n8k{depth}.row.col.f64.f64.f64.f64"
    outputs = ", ".join(f'"+d"({x})' for x in registers[: counts[0]])
    inputs = ", ".join(f'"d"({x})' for x in registers[counts[0] :])
    # the first list stands twice: the sums are read and written
    text = ", ".join((*operand_lists, operand_lists[0]))
    return f'asm("{name} {text};" : {outputs} : {inputs});'


_WHOLE = "\n".join(
    f"  if constexpr (DEPTH == {depth})\n    {_format_mma(ROWS, depth, 'c', 'a', 'b')}"
    for depth in DEPTHS
)

# before sm_90, double precision has only m8n8k4, so 16 rows take two instructions
PRODUCTS = (
    "10_feinsum_fragment_products",
    f"""\
#define feinsum_least_capability 80
#if !defined(feinsum_has_cuda) || defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "this recipe takes CUDA and a GPU of sm_80 or newer; take another"
#else
template <int DEPTH>
inline __device__ void feinsum_mma(double *c, double const *a, double const *b)
{{
#if !defined(__CUDA_ARCH__)
  feinsum_mma_without_gpu(DEPTH, c, a, b);
#elif __CUDA_ARCH__ >= 900
{_WHOLE}
#else
  _Pragma("unroll")
  for (int q = 0; q < DEPTH / 4; ++q)
    _Pragma("unroll")
    for (int h = 0; h < 2; ++h) {{
      double *d = c + 2 * h;
      double const *e = a + 2 * q + h, *f = b + q;
      {_format_mma(8, 4, "d", "e", "f")}
    }}
#endif
}}
#endif
""",
)
"""For a compilation without GPU, ``feinsum_mma_without_gpu`` has to be defined."""


def _write_half_product(kind: str) -> str:
    """Write the product of one type of half precision."""
    return f"""\
inline __device__ void feinsum_mma_of_halves(
    float *c, feinsum_{kind} const *a, feinsum_{kind} const *b)
{{
#if !defined(__CUDA_ARCH__)
  feinsum_half_mma_without_gpu(c, a, b);
#else
  unsigned p[6];
  _Pragma("unroll")
  for (int k = 0; k < 4; ++k)
    p[k] = a[2 * k].bits | (unsigned) a[2 * k + 1].bits << 16;
  _Pragma("unroll")
  for (int k = 0; k < 2; ++k)
    p[4 + k] = b[2 * k].bits | (unsigned) b[2 * k + 1].bits << 16;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.{_PTX_KINDS[kind]}.{_PTX_KINDS[kind]}.f32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(p[4]), "r"(p[5]));
#endif
}}
"""


_PTX_KINDS = {"float16": "f16", "bfloat16": "bf16"}
HALF_PRODUCTS = (
    "10_feinsum_half_products",
    f"""\
#define feinsum_least_capability 80
#if !defined(feinsum_has_cuda) || defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "this recipe takes CUDA and a GPU of sm_80 or newer; take another"
#else
{"".join(map(_write_half_product, _PTX_KINDS))}\
template <int DEPTH, typename T>
inline __device__ void feinsum_mma(float *c, T const *a, T const *b)
{{
  feinsum_mma_of_halves(c, a, b);
}}
#endif
""",
)
"""For a compilation without GPU, ``feinsum_half_mma_without_gpu`` has to be defined."""


@dataclass(frozen=True)
class FragmentProduct(Tag):  # type: ignore[misc]
    """Add a product of fragments to sums.

    The kernel needs the function in ``PRODUCTS``, or that in ``HALF_PRODUCTS``.

    Rewrite::

        sums[:16,:8] += left[:16,:depth] @ right[:depth,:8]

        feinsum_mma<depth>(sums + sums_at, left + left_at, right + right_at);

    Attributes:
        depth: number of terms of the product.
        sums, left, right: private arrays, each with the private scalar that holds the
            offset of its first entry, in C order.
    """

    depth: int
    sums: tuple[str, str]
    left: tuple[str, str]
    right: tuple[str, str]

    @property
    def code(self) -> str:
        pointers = ", ".join(map(add_offset, (self.sums, self.left, self.right)))
        return f"feinsum_mma<{self.depth}>({pointers});"

    @property
    def read_names(self) -> frozenset[str]:
        return frozenset({*self.sums, *self.left, *self.right})

    @property
    def written_array(self) -> str:
        return self.sums[0]


MATRICES = (
    "10_feinsum_matrix_products",
    """\
#if !defined(feinsum_has_cuda)
#error "this recipe takes CUDA and cuBLAS; take gpu_product"
#endif
""",
)
"""For :class:`feinsum.targets.cuda.products.MatrixProduct`."""
