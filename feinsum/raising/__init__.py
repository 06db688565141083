"""Raising: from a Loopy kernel to its functional batched einsums, or to refusals.

As an example, this kernel of a discontinuous Galerkin method computes the divergence of
``u`` in every element ``e``. As usual in programs, its loops add to an entry:

>>> import loopy as lp
>>> import numpy as np
>>> unit = lp.make_kernel(
...     "[Nel] -> {[e, i, r, j]: 0 <= e < Nel and 0 <= i, j < 4 and 0 <= r < 3}",
...     '''
...     for e
...         for i
...             du[e, i] = 0                                          {id=clear}
...             for r, j
...                 du[e, i] = du[e, i] + J[r, e]*D[r, i, j]*u[e, j]  {id=add,dep=clear}
...             end
...         end
...     end
...     ''',
...     [lp.GlobalArg("J, D, u, du", np.float64, shape=lp.auto), ...],
...     name="divergence", lang_version=(2018, 2))

:func:`raise_kernel` takes it through these steps:

1. Prepare loops and sizes: loops begin at 0 and share a domain only if they are related
   (:mod:`loops <feinsum.raising.loops>`); sizes that arguments or constants determine
   become numbers (:mod:`sizes <feinsum.raising.sizes>`). This kernel does not change.
2. Find einsums of a sparse operand: loops over the children of nodes of a tree, as in
   CSR (:mod:`trees <feinsum.raising.trees>`, :mod:`sparse <feinsum.raising.sparse>`).
   This kernel has none.
3. Read each other instruction as a row, ``shift + scale*sum(product of operands)``, or
   refuse it (:mod:`row <feinsum.raising.row>`). ``add`` is refused: every iteration of
   ``r`` and ``j`` writes ``du[e, i]``, so iterations cannot run in any order.
4. Rewrite the kernel if anything was refused (:mod:`normal_form
   <feinsum.raising.normal_form>`): loops that add become sums (:mod:`accumulations
   <feinsum.raising.accumulations>`), and private values are inlined (:mod:`temporaries
   <feinsum.raising.temporaries>`). ``clear`` and ``add`` become ``du[e, i] = sum([j,
   r], J[r, e]*D[r, i, j]*u[e, j])``, which is a row.
5. Turn each factor into an operand: a function of indices behind a substitution rule
   (:mod:`operands <feinsum.raising.operands>`, :mod:`functions
   <feinsum.raising.functions>`).
6. Batch rows of one notation if nothing has to run between them (:mod:`dependences
   <feinsum.raising.dependences>`). Here there is a single row.

>>> raised = raise_kernel(unit)
>>> print(raised.t_unit["divergence"].instructions[0])
add: du[e, i] <- reduce(sum, [r, j], J_rule(r, e)*D_rule(r, i, j)*u_rule(e, j))
>>> (nest,) = raised.raised
>>> nest.einsum.subscripts, nest.functions["D_rule"].body
('re,rij,ej->ei', 'D[_0, _1, _2]')

The einsum has the kernel's names; its canonical form, under which facts are recorded,
has others. ``relabeling`` maps the first to the second:

>>> nest.form.text
'c b d, c a, a d -> a b | A0[3,4,4]:<f8 A1[3,N0]:<f8 A2[N0,4]:<f8 | A0 A1 A2'
>>> dict(nest.relabeling.indices)
{'e': 'a', 'i': 'b', 'r': 'c', 'j': 'd'}
"""

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
from feinsum.raising.functions import regrouped
from feinsum.raising.kernel import (
    check_unit,
    identify_as_einsum,
    raise_kernel,
    single_nest,
)
from feinsum.raising.nest import (
    PARENT,
    POSITION,
    LoopNest,
    RaisedKernel,
    RaisedNest,
    RefusedNest,
    Tree,
    names_of,
    points_of,
    value_of,
)
from feinsum.raising.row import called_kernels

__all__ = [
    "PARENT",
    "POSITION",
    "LoopNest",
    "RaisedKernel",
    "RaisedNest",
    "RefusedNest",
    "Tree",
    "called_kernels",
    "check_unit",
    "identify_as_einsum",
    "names_of",
    "points_of",
    "raise_kernel",
    "regrouped",
    "single_nest",
    "value_of",
]
