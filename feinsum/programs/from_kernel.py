"""Raising of a Loopy kernel to the program that it computes."""

from __future__ import annotations

from typing import Any

from feinsum.ir.program import Program


def program_from_kernel(t_unit: Any, *, kernel_name: str | None = None) -> Program:
    """Return the program of a Loopy kernel with any number of nests.

    Every assignment becomes a statement, preceded by one for every reduction in it.
    pytato generates such kernels; an array context passes them to
    ``transform_loopy_program``.

    Args:
        t_unit: a translation unit whose dtypes and shapes are known.
        kernel_name: the name of the kernel, if the unit has several.

    Returns:
        The program; its outputs are the global arrays that the kernel writes, its
        inputs those that it only reads.

    Raises:
        NotAnEinsumError: by the rules of :func:`feinsum.raising.raise_kernel`, for a
            domain that is not a box or a value that is not a function of indices.
        ProgramError: with the rule ``kernel`` for other instructions, or if a program
            cannot compute the same values.

    >>> import loopy as lp, numpy as np
    >>> t_unit = lp.make_kernel(
    ...     "{[i,j,k]: 0<=i,j,k<4}",
    ...     '''
    ...     t[i] = sum(j, A[i,j]*x[j]) {id=first}
    ...     y[k] = exp(t[k]) {dep=first}
    ...     ''',
    ...     [lp.GlobalArg("A,x,y", np.float64, shape=lp.auto),
    ...      lp.TemporaryVariable("t", np.float64, shape=(4,))],
    ...     lang_version=(2018, 2))
    >>> print(program_from_kernel(t_unit))
    A[4,4]:<f8
    x[4]:<f8
    t[i] = sum x0*x1 : A[i,j], x[j]
    y[k] = map exp(x0) : t[k]
    -> y
    """
    from feinsum.programs.raised import raise_program

    return raise_program(t_unit, kernel_name)
