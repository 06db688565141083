"""Numbers of half precision in CUDA C++: types that compute in single precision.

A type holds 16 bits. It converts to ``float`` where it is read, and is rounded to the
nearest number, ties to even, where it is written, so ``x = a*b + c`` rounds once. NVRTC
has no header of its own for such types.

==================  ========  ========  =========
type                exponent  mantissa  largest
==================  ========  ========  =========
float16             5 bits    10 bits   65504
bfloat16            8 bits    7 bits    3.4e38
==================  ========  ========  =========

Source: NVIDIA, PTX ISA, "cvt" and "Alternate Floating Point Data Formats".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from feinsum.dtypes import FLOAT16
from feinsum.ir.dtypes import BFLOAT16

HALVES: Mapping[np.dtype[np.generic], str] = {
    FLOAT16: "feinsum_float16",
    **({BFLOAT16: "feinsum_bfloat16"} if BFLOAT16 is not None else {}),
}
"""The name in CUDA C++ of each type of half precision."""


def format_half(value: np.generic) -> str:
    """Write a literal of half precision.

    >>> format_half(np.float16(0.5))
    'feinsum_float16(0.5f)'
    """
    return f"{HALVES[value.dtype]}({float(value)!r}f)"


def _write_type(name: str, widen: str, narrow: str) -> str:
    return f"""\
struct {name}
{{
  unsigned short bits;
  {name}() = default;
  inline __device__ {name}(float x)
  {{
#if defined(__CUDA_ARCH__)
    {narrow}
#else
    bits = {name}_bits_without_gpu(x);
#endif
  }}
  inline __device__ operator float() const
  {{
#if defined(__CUDA_ARCH__)
    float x;
    {widen}
    return x;
#else
    return {name}_value_without_gpu(bits);
#endif
  }}
}};
"""


# the 16 bits of a bfloat16 are the upper half of those of a float; before sm_90, PTX
# only converts in the other direction
_ROUND = """\
unsigned u = __float_as_uint(x);
    bits = (u & 0x7fffffff) > 0x7f800000 ? 0x7fff
           : (unsigned short) ((u + 0x7fff + (u >> 16 & 1)) >> 16);"""

PREAMBLE = _write_type(
    "feinsum_float16",
    'asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));',
    'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));',
) + _write_type(
    "feinsum_bfloat16",
    "x = __uint_as_float((unsigned) bits << 16);",
    f"""\
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
    {_ROUND}
#endif""",
)
"""The types. Without a GPU, two functions have to be defined for each of them."""
