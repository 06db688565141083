"""Parse what a command computes from the command line.

::

    "xre,rij,ej->xei" --sizes x=3,r=3,e=Nel,i=20,j=20      read_einsum
    "ijk,ja,ka->ia" --sparse T.tns --sizes a=16            read_sparse_einsum
    --program attention.txt                                read_program
    --size Nel=100000                                      read_values
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING

import typer

from feinsum.cli.shared.options import DEFAULT_DTYPE, EinsumOptions
from feinsum.cli.shared.output import check_reading
from feinsum.words import format_count

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum, Extent, IndexList
    from feinsum.programs import Program

USUAL_RANK = 32
"""The default extent of a dense index beside a sparse operand."""

_FILE = re.compile(r"(\w*[./\\])*[\w-]+[./\\]\w+")
"""Pattern of a text that looks like a path, and has no arrow."""

MAX_DIGITS = 1000
"""Maximum digits of an integer that Python parses by default."""


def read_einsum(
    subscripts: str,
    sizes: list[str] | None,
    operands: str | None = None,
    rows: str | None = None,
    dtype: str = DEFAULT_DTYPE,
) -> BatchedEinsum:
    """Read the batched einsum that the options of a command describe.

    Raises:
        InvalidEinsumError: if they describe none.
        typer.BadParameter: naming the option that cannot be read.

    >>> print(read_einsum("ij,j->i", ["i=n,j=4"], operands="M,x"))
    ij,j->i of (M x) with M[n,4]:<f8, x[4]:<f8
    """
    return EinsumOptions(sizes, operands, rows, dtype).read(subscripts)


def read_einsums(texts: Sequence[str], arrays: EinsumOptions) -> list[BatchedEinsum]:
    """Read the einsums of a command line: subscripts, or whole einsums as text.

    The options describe the subscripts. If all are whole einsums, the options must
    agree with them.

    Raises:
        InvalidEinsumError: if a text or the options describe no einsum.
        typer.BadParameter: naming the option that cannot be read.
    """
    from feinsum.ir import from_text

    extents = _parse_extents(arrays.sizes or ())
    # a whole text has rows behind a bar
    einsums = [
        from_text(text.strip()) if "|" in text else _build_einsum(text, extents, arrays)
        for text in texts
    ]
    _check_unknown([index for einsum in einsums for index in einsum.indices], extents)
    if all("|" in text for text in texts):
        for einsum in einsums:
            _check_agreement(einsum, extents, arrays)
    return einsums


def _build_einsum(
    subscripts: str, extents: Mapping[str, Extent], arrays: EinsumOptions
) -> BatchedEinsum:
    from feinsum.ir import BatchedEinsum, array

    # a mistyped name of a file would be read as subscripts
    if _FILE.fullmatch(subscripts.strip()):
        raise typer.BadParameter(
            f"{subscripts!r} is not an einsum, such as 'ij,j->i'; if it is a file: "
            "kernels are in FILE.py, plans in FILE.json",
            param_hint="SUBSCRIPTS",
        )
    inputs, output = _read_subscripts(subscripts, extents)
    indices = [i for term in inputs for i in term]
    # before sizes: an index that only the result has needs none
    _check_output(indices, [index for index in output if index not in extents])
    _check_missing(indices, extents)
    shapes = [tuple(extents[index] for index in term) for term in inputs]
    table = [
        tuple(array(*x, arrays.dtype) for x in zip(names, shapes, strict=True))
        for names in _parse_names(len(inputs), arrays)
    ]
    return BatchedEinsum(output, inputs, tuple(table))


def _check_agreement(
    einsum: BatchedEinsum, extents: Mapping[str, Extent], arrays: EinsumOptions
) -> None:
    """Refuse options that contradict what a whole einsum says itself."""
    from feinsum.ir import array

    for index, extent in extents.items():
        actual = einsum.extents.get(index, extent)
        if extent != actual:
            raise _make_contradiction(
                f"{index}={extent}", f"{index}={actual}", "--sizes"
            )
    if arrays.operands is not None or arrays.rows is not None:
        option = "--operands" if arrays.rows is None else "--rows"
        names = _parse_names(einsum.n_operands, arrays)
        actual_names = [[operand.name for operand in row] for row in einsum.rows]
        if names != actual_names:
            raise _make_contradiction(
                _format_table(names), _format_table(actual_names), option
            )
    if arrays.dtype != DEFAULT_DTYPE:
        expected = array("A", (), arrays.dtype).dtype
        for operand in einsum.operands:
            if operand.dtype != expected:
                raise _make_contradiction(arrays.dtype, str(operand), "--dtype")


def _make_contradiction(
    option_says: str, text_says: str, option: str
) -> typer.BadParameter:
    return typer.BadParameter(
        f"{option_says} is given, the einsum says {text_says}; leave the option out",
        param_hint=option,
    )


def _format_table(names: Sequence[Sequence[str]]) -> str:
    return ";".join(map(",".join, names))


def read_sparse_einsum(
    subscripts: str, path: Path, arrays: EinsumOptions
) -> tuple[BatchedEinsum, dict[str, int]]:
    """Read an einsum whose first operand is in a file, and the profile of its tree.

    The levels of the tree are the axes of the file, in their order. The result has its
    pattern if it has its indices and no others.

    Args:
        subscripts: the subscripts of the einsum.
        path: path of a ``.tns`` or ``.tns.gz`` file.
        arrays: the options; extents of the other indices are by default 32.

    Raises:
        InvalidSparseArrayError: if the file cannot be read.
        InvalidEinsumError: if there is no such einsum.
        typer.BadParameter: naming the option that cannot be read.
    """
    from feinsum.ir import list_profile_names, parse_subscripts
    from feinsum.sparse import read_tns, to_csf

    with check_reading(path, "--sparse"):
        tree = to_csf(read_tns(path))
    inputs, output = parse_subscripts(subscripts)
    if len(inputs[0]) != tree.order:
        raise typer.BadParameter(
            f"the first operand has {format_count(len(inputs[0]), 'index')}, "
            f"{path} has entries of {tree.order}",
            param_hint="--sparse",
        )
    extents = dict(zip(inputs[0], tree.shape, strict=True))
    sizes = [*(arrays.sizes or ()), *(f"{i}={n}" for i, n in extents.items())]
    named = {
        item.partition("=")[0].strip() for text in sizes for item in text.split(",")
    }
    others = dict.fromkeys(
        i for term in (*inputs, output) for i in term if i not in named
    )
    usual = [f"{index}={USUAL_RANK}" for index in others]
    dense = replace(arrays, sizes=[*sizes, *usual]).read(subscripts)
    # with the indices of the tensor and no others, the result has its pattern
    storage = "csf=" if sorted(output) == sorted(inputs[0]) else "csf"
    stored = [(replace(row[0], storage=storage), *row[1:]) for row in dense.rows]
    einsum = replace(dense, rows=tuple(stored))
    return einsum, dict(zip(list_profile_names(einsum), tree.profile, strict=True))


def read_program(path: Path) -> Program:
    """Read the program in the file of ``--program``."""
    from feinsum.programs import program_from_text

    with check_reading(path, "--program"):
        return program_from_text(path.read_text())


def read_values(sizes: Sequence[str], option: str) -> dict[str, int]:
    """Parse values of size parameters, such as ``["Nel=100", "n=3,m=4"]``."""
    values = {}
    for name, text in _parse_pairs(sizes, option):
        if not _is_number(text):
            raise typer.BadParameter(
                f"{name}={text} is not an integer", param_hint=option
            )
        values[name] = int(text)
    return values


def check_parameters(
    values: Mapping[str, int], einsums: Sequence[BatchedEinsum | Program]
) -> None:
    """Refuse values of ``--size`` for parameters that no einsum or program has."""
    names = {parameter.name for einsum in einsums for parameter in einsum.size_params}
    if unknown := sorted(set(values) - names):
        raise typer.BadParameter(
            f"no size parameter is named {', '.join(unknown)}; there are "
            f"{', '.join(sorted(names)) or 'none'}",
            param_hint="--size",
        )


def _parse_extents(sizes: Sequence[str]) -> dict[str, Extent]:
    return {
        index: _parse_extent(index, text)
        for index, text in _parse_pairs(sizes, "--sizes")
    }


def _parse_extent(index: str, text: str) -> Extent:
    from feinsum.ir import SizeParam

    if _is_number(text):
        return int(text)
    if text.isidentifier():
        return SizeParam(text)
    raise typer.BadParameter(
        f"{index}={text}: expected a positive integer or a name", param_hint="--sizes"
    )


def _is_number(text: str) -> bool:
    """Return whether a text consists of ASCII digits, as many as Python parses."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


def _parse_pairs(texts: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of ``name=value,name=value``; no name may occur twice."""
    seen = set()
    for item in (item for text in texts for item in text.split(",") if item.strip()):
        name, equals, value = (word.strip() for word in item.partition("="))
        if not (name and equals and value):
            raise typer.BadParameter(
                f"{item.strip()!r} is not of the form name=value", param_hint=option
            )
        # the last one would win without a word
        if name in seen:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        seen.add(name)
        yield name, value


def _read_subscripts(
    subscripts: str, extents: Mapping[str, Extent]
) -> tuple[tuple[IndexList, ...], IndexList]:
    """Parse the index lists; refuse words without braces, showing how to write them."""
    from feinsum.ir import convert_words, parse_subscripts

    words = set(re.findall(r"\w+", subscripts))
    # "row" among the sizes and in the subscripts: meant as a name, read as letters
    named = [word for word in words.intersection(extents) if len(word) > 1]
    if named and "{" not in subscripts:
        raise typer.BadParameter(
            f"{subscripts!r} names the index {min(named)!r} without braces; write "
            f"{convert_words(subscripts)!r}",
            param_hint="SUBSCRIPTS",
        )
    return parse_subscripts(subscripts)


def _check_output(indices: Sequence[str], output: Sequence[str]) -> None:
    """Refuse indices of the result that no operand has, before requiring sizes."""
    unknown = [index for index in dict.fromkeys(output) if index not in indices]
    if unknown:
        raise typer.BadParameter(
            f"the result has the {_format_indices(unknown)}, which no operand has; the "
            f"operands have the {_format_indices(list(dict.fromkeys(indices)))}",
            param_hint="SUBSCRIPTS",
        )


def _check_missing(indices: Sequence[str], extents: Mapping[str, Extent]) -> None:
    missing = [index for index in dict.fromkeys(indices) if index not in extents]
    if missing:
        raise typer.BadParameter(
            f"no size is given for {_format_indices(missing)}; add {missing[0]}=20, or "
            f"{missing[0]}=N for a size known only at run time",
            param_hint="--sizes",
        )


def _check_unknown(indices: Sequence[str], extents: Mapping[str, Extent]) -> None:
    unknown = [index for index in extents if index not in indices]
    if not unknown:
        return
    names = {str(extent) for extent in extents.values()}
    named = next((name for name in unknown if name in names), None)
    hint = (
        f"; the value of the size {named} is given by --size {named}=..."
        if named
        else ""
    )
    raise typer.BadParameter(
        f"the subscripts have no {_format_indices(unknown)}{hint}", param_hint="--sizes"
    )


def _format_indices(indices: Sequence[str]) -> str:
    noun = "index" if len(indices) == 1 else "indices"
    return f"{noun} {', '.join(map(repr, indices))}"


def _parse_names(n: int, arrays: EinsumOptions) -> list[list[str]]:
    """Parse the names of the operands of each row."""
    operands, rows = arrays.operands, arrays.rows
    if operands is not None and rows is not None:
        raise typer.BadParameter("give --operands or --rows", param_hint="--rows")
    if operands is None and rows is None:
        # A to Z, then A1 to Z1
        letters = (c + (str(k) if k else "") for k in count() for c in ascii_uppercase)
        return [[name for name, _ in zip(letters, range(n), strict=False)]]
    table = [
        [name.strip() for name in row.split(",")]
        for row in (rows or operands or "").split(";")
    ]
    for names in table:
        if len(names) != n:
            raise typer.BadParameter(
                f"{','.join(names)!r} names {format_count(len(names), 'operand')}, "
                f"but the subscripts have {format_count(n, 'term')}",
                param_hint="--operands" if rows is None else "--rows",
            )
    return table
