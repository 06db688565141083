"""Einsums of arrays, as a call: the numpy-style client of retrieval.

Three values lead from arrays to a result: a :class:`Reading` (what einsum the
arguments are), a :class:`CallKernel` (the retrieved kernel, built) and a
:class:`PreparedCall` (both, kept for the next call of the same kind).
"""

from feinsum.calling.call import call_einsum, prepare_call
from feinsum.calling.kept import clear_call_cache
from feinsum.calling.kernel import CallKernel
from feinsum.calling.prepared import PreparedCall
from feinsum.calling.reading import Reading
from feinsum.calling.simple import read_call

__all__ = [
    "CallKernel",
    "PreparedCall",
    "Reading",
    "call_einsum",
    "clear_call_cache",
    "prepare_call",
    "read_call",
]
