"""Retrieval: a user's kernel in, the kernel with the best known recipes out.

Three values lead from one to the other: the raised kernel, the matches of its nests,
and the resulting kernel.

Source: paper, section 7 (figure 2, listing 4).
"""

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
from feinsum.retrieval.bounding import bound
from feinsum.retrieval.lookup import OnMiss, explain, look_up, query, retrieve
from feinsum.retrieval.result import Retrieval
from feinsum.retrieval.selection import NestSelection

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
