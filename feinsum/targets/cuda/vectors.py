"""Vectors of CUDA: one template, as its own vectors have no arithmetic.

A vector is aligned as its size asks, up to 16 bytes, so that it moves in one
instruction.
"""

from __future__ import annotations

import numpy as np

__all__ = ["LANES", "PREAMBLE", "VECTORS", "vector_name"]

LANES = (2, 3, 4, 8, 16)
"""Numbers of lanes, those of OpenCL."""

_ENTRIES = {
    "signed char": np.int8,
    "unsigned char": np.uint8,
    "short": np.int16,
    "unsigned short": np.uint16,
    "int": np.int32,
    "unsigned int": np.uint32,
    "long": np.int64,
    "unsigned long": np.uint64,
    "float": np.float32,
    "double": np.float64,
}

VECTORS = {
    (np.dtype(kind), lanes): np.dtype([(f"s{k}", kind) for k in range(lanes)])
    for kind in _ENTRIES.values()
    for lanes in LANES
}
"""By which Loopy knows a vector, by entry and number of lanes."""


def vector_name(entry: np.dtype[np.generic], lanes: int) -> str:
    """The type in CUDA C++.

    >>> vector_name(np.dtype(np.float64), 4)
    'feinsum_vec<double, 4>'
    """
    names = {np.dtype(kind): name for name, kind in _ENTRIES.items()}
    return f"feinsum_vec<{names[entry]}, {lanes}>"


def _operator(sign: str) -> str:
    loop = "for (int k = 0; k < N; ++k)"
    return f"""\
template <typename T, int N>
inline __device__ feinsum_vec<T, N> operator{sign}(
    feinsum_vec<T, N> const &a, feinsum_vec<T, N> const &b)
{{
  feinsum_vec<T, N> c;
  _Pragma("unroll")
  {loop} c.s[k] = a.s[k] {sign} b.s[k];
  return c;
}}
template <typename T, int N, typename S>
inline __device__ feinsum_vec<T, N> operator{sign}(feinsum_vec<T, N> const &a, S b)
{{
  return a {sign} feinsum_vec<T, N>((T) b);
}}
template <typename T, int N, typename S>
inline __device__ feinsum_vec<T, N> operator{sign}(S a, feinsum_vec<T, N> const &b)
{{
  return feinsum_vec<T, N>((T) a) {sign} b;
}}
template <typename T, int N, typename S>
inline __device__ feinsum_vec<T, N> &operator{sign}=(feinsum_vec<T, N> &a, S const &b)
{{
  return a = a {sign} b;
}}
"""


PREAMBLE = f"""\
#define feinsum_has_cuda 1
constexpr int feinsum_alignment(int n_bytes)
{{
  return n_bytes % 16 == 0 ? 16 : n_bytes % 8 == 0 ? 8 : n_bytes % 4 == 0 ? 4
         : n_bytes % 2 == 0 ? 2 : 1;
}}
template <typename T, int N>
struct alignas(feinsum_alignment(N * sizeof(T))) feinsum_vec
{{
  T s[N];
  feinsum_vec() = default;
  inline __device__ feinsum_vec(T x)
  {{
    _Pragma("unroll")
    for (int k = 0; k < N; ++k) s[k] = x;
  }}
}};
{"".join(map(_operator, "+-*/"))}"""
"""The template, and arithmetic of vectors with vectors and with numbers."""
