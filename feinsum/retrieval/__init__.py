"""Retrieval: a user's kernel in, the kernel with the best known recipes out.

The divergence of :mod:`feinsum.raising`, looked up on this processor ::

    feinsum.retrieve(unit)                                                 lookup
      the same kernel, options and facts as in an earlier process?   answer_cache
      its einsum: re,rij,ej->ei, the canonical                   request, raising
        c b d, c a, a d -> a b | A0[3,4,4] A1[3,N0] A2[N0,4]
      candidates for this text, of which one is measured                 matching
        element_blocked(lanes=4)     6.2 times, recorded on this processor
        unroll_and_jam(rows=8)       predicted
      can the nest run apart from the rest of the kernel?                  phases
      the kernel with the first candidate, as code           generating, applying
      is it right, and faster than the given kernel?                kernel_trials
        both run in turns in another process           kernel_times, verifiers
        5.8 times as fast, about what the record says: the search ends     search
      the kernel with element_blocked                                      result

Recipes refer to the names of the canonical einsum: ``applying`` extracts the nest under
these names, applies the transform, and puts its instructions back. If the given kernel
cannot be timed, as on GPUs, recipes are verified in the kernels generated for their
einsums (``einsum_trials``). All ranks of a parallel program follow the decision of rank
0 (``decision``). Loops over cells that call a kernel are computed in batches
(``cell_batches``) if that is faster.

Source: paper, section 7 (figure 2, listing 4).
"""

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
from feinsum.retrieval.lookup import OnMiss, explain, look_up, retrieve
from feinsum.retrieval.queries import bound, query
from feinsum.retrieval.result import NestSelection, Retrieval

__all__ = [
    "NestSelection",
    "OnMiss",
    "Retrieval",
    "bound",
    "explain",
    "look_up",
    "query",
    "retrieve",
]
