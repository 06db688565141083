"""Numbers and tables as they are printed."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from feinsum.cli.shared.output import print_records, print_table, to_digits
from feinsum.records import TransformSpec
from tests.db.factories import make_measurement, make_record


@given(
    st.floats(1e-12, 1e15) | st.floats(-1e15, -1e-12) | st.just(0.0),
    st.integers(1, 6),
)
def test_digits_are_significant(value, n_digits):
    """The printed number is right to that many digits and has no exponent."""
    text = to_digits(value, n_digits)
    assert re.fullmatch(r"-?\d+(\.\d+)?", text)
    assert abs(float(text) - value) <= abs(value) * 10 ** (1 - n_digits) / 1.9


@given(
    st.floats(1e-9, 1e3),
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,20}", fullmatch=True),
        st.integers(0, 10**6),
        max_size=8,
    ),
    st.booleans(),
)
def test_a_table_of_records_fits_80_columns_and_keeps_every_number(
    median_s, parameters, is_roof_known
):
    """Recipes are wrapped, numbers and ids are not."""
    record = replace(
        make_record(),
        spec=TransformSpec("a_family_with_quite_a_long_name", 12, parameters),
        measurement=make_measurement(median_s),
    )
    fractions = {record.id: 0.0123} if is_roof_known else {}
    printed = _printed(lambda: print_records([record] * 2, fractions))
    assert max(map(len, printed.splitlines())) <= 80
    measured = record.measurement
    for number in (
        to_digits(median_s * 1e3),
        "10.0 (",
        to_digits(measured.giga_operations_per_s),
        record.id[:12],
        *["1.23%"] * is_roof_known,
    ):
        assert printed.count(number) >= 2, number
    assert "…" not in printed


def test_brackets_are_no_markup():
    """Cells are printed as they are, whatever they contain."""
    printed = _printed(lambda: print_table(("a",), ("b",), [("u[bold]:<f8", "[1]")]))
    assert "u[bold]:<f8" in printed
    assert "[1]" in printed


def _printed(action):
    import contextlib
    import io
    from unittest import mock

    with (
        contextlib.redirect_stdout(io.StringIO()) as stdout,
        mock.patch.dict("os.environ", COLUMNS="80"),
    ):
        action()
    return stdout.getvalue()
