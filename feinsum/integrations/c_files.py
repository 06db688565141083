"""``c_source``: an einsum's best recipe as a C file, for programs without Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from loopy.diagnostic import ParameterFinderWarning

from feinsum.codegen import generate_loopy
from feinsum.db import Database
from feinsum.errors import InvalidOptionError
from feinsum.ir import BatchedEinsum, require_einsum
from feinsum.options import Effort
from feinsum.records import Policy
from feinsum.retrieval import Retrieval, look_up
from feinsum.targets.host.code import StandaloneCTarget
from feinsum.targets.host.standalone import write_standalone
from feinsum.targets.quiet import quiet

FLAGS = "-std=gnu11 -O3 -march=native -fno-math-errno -fno-trapping-math"
"""Options with which a file should be compiled. Without ``-march``, vectors may be
shorter than those of the processor.
"""

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_KEYWORDS = """
    auto break case char const continue default do double else enum extern float for
    goto if inline int long main register restrict return short signed sizeof static
    struct switch typedef union unsigned void volatile while
"""
"""Keywords of C11, and ``main``."""


@dataclass(frozen=True)
class CSource:
    """A function of C that evaluates an einsum.

    Attributes:
        signature: its declaration without the semicolon. It returns 0; or 1 if memory
            for temporaries runs out.
        recipe: the recipe that was applied; empty if there is none.
        level: the match level of the recipe.
        source: the C file, which needs the C library but no header.
        header: its header, for C and C++.
    """

    signature: str
    recipe: str
    level: str
    source: str
    header: str


def c_source(
    einsum: BatchedEinsum,
    *,
    name: str = "feinsum_kernel",
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    effort: Effort | None = None,
) -> CSource:
    """Generate C with GNU vector types from an einsum's best known or predicted recipe.

    The arguments of the function are the outputs, the operands and the sizes. Arrays
    must be in C order and must not overlap. Compiled with ``-fopenmp``, it runs on the
    threads of OpenMP; otherwise on the thread of the caller. It can be called from
    several threads.

    Args:
        einsum: the einsum.
        name: name of the function.
        device: as for :func:`feinsum.retrieve`.
        database: as for :func:`feinsum.retrieve`.
        policy: as for :func:`feinsum.retrieve`.
        effort: as for :func:`feinsum.retrieve`.

    Raises:
        InvalidOptionError: if a name is not valid in C.
        InvalidEinsumError: if the einsum breaks a rule.

    >>> from feinsum.ir import array, einsum
    >>> e = einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))
    >>> c_source(e, name="product", effort="recorded").signature
    'int product(double *out, const double *A, const double *x, int32_t n)'
    """
    require_einsum(einsum)
    sizes = (parameter.name for parameter in einsum.size_params)
    # names in the einsum become names in C, which has keywords and a smaller alphabet
    for word in (name, *(operand.name for operand in einsum.operands), *sizes):
        _check_name(word)
    t_unit = generate_loopy(einsum, name=name, target=StandaloneCTarget())
    retrieval = look_up(
        t_unit, device=device, database=database, policy=policy, effort=effort
    )
    # Loopy's wrapper for Python warns about sizes that it cannot find; it is not used
    with quiet(ParameterFinderWarning):
        code = retrieval.t_unit.executor().generated()
    function = write_standalone(code, retrieval.t_unit[name])
    about = _format_comment(_describe_file(einsum, retrieval))
    return CSource(
        signature=function.signature,
        recipe=", ".join(map(str, retrieval.applied)),
        level=", ".join(str(nest.match.level) for nest in retrieval.nests),
        source=f"{about}\n{function.source}",
        header=_format_header(name, about, function.signature),
    )


def _check_name(name: str) -> None:
    if name in _KEYWORDS.split() or not _IDENTIFIER.fullmatch(name):
        raise InvalidOptionError(
            f"{name!r} is not a valid C identifier; expected letters, digits and _, "
            "starting with a letter, and no keyword: rename it"
        )


def _describe_file(einsum: BatchedEinsum, retrieval: Retrieval) -> Iterator[str]:
    """Describe the file's einsum and its recipe, and how to compile it."""
    yield f"Evaluates {einsum}."
    yield ""
    for nest in retrieval.nests:
        recipe = nest.applied or "none; the loops are in the order written"
        yield f"Recipe: {recipe}"
        yield f"Fit: {nest.match.level} ({nest.match.reason})"
    yield f"Compile with: {FLAGS} [-fopenmp]"
    yield ""
    yield "Arrays are in C order and must not overlap. Returns 0, or 1 if memory for"
    yield "temporaries runs out."


def _format_comment(lines: Iterator[str]) -> str:
    text = "\n".join(f" * {line}".rstrip() for line in lines)
    return f"/*\n{text.replace('*/', '* /')}\n */\n"


def _format_header(name: str, about: str, signature: str) -> str:
    guard = f"FEINSUM_{name.upper()}_H"
    return (
        f"{about}\n#ifndef {guard}\n#define {guard}\n\n#include <stdint.h>\n\n"
        f'#ifdef __cplusplus\nextern "C" {{\n#endif\n\n{signature};\n\n'
        f"#ifdef __cplusplus\n}}\n#endif\n\n#endif\n"
    )
