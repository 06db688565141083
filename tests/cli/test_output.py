"""Numbers and tables as they are printed."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from feinsum.cli.shared.output import print_table, to_digits
from feinsum.cli.shared.records import print_records
from feinsum.records import TransformSpec
from tests.db.factories import make_measurement, make_record


@given(
    st.floats(1e-12, 1e15) | st.floats(-1e15, -1e-12) | st.just(0.0), st.integers(1, 6)
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
def test_a_row_of_a_record_is_one_line_whatever_the_terminal(
    median_s, parameters, is_roof_known
):
    """Recipes, numbers and ids are whole, and can be copied; the rule is short."""
    record = replace(
        make_record(),
        spec=TransformSpec("a_family_with_quite_a_long_name", 12, parameters),
        measurement=make_measurement(median_s),
    )
    fractions = {record.id: 0.0123} if is_roof_known else {}
    measured = record.measurement
    for columns in "80", "20":
        printed = _printed(lambda: print_records([record] * 2, fractions), columns)
        rules = [line for line in printed.splitlines() if "─" in line]
        assert [len(rule) for rule in rules] == [int(columns)]
        rows = [line for line in printed.splitlines() if record.id[:12] in line]
        assert len(rows) == 2
        for row in rows:
            assert row.endswith(f" {record.spec}")
            for number in (
                to_digits(median_s * 1e3),
                "10.0 (",
                to_digits(measured.giga_operations_per_s),
                *["1.23%"] * is_roof_known,
            ):
                assert number in row


@given(st.lists(st.from_regex(r"[a-z]{1,30}", fullmatch=True), min_size=1, max_size=20))
def test_terminals_wrap_texts_between_words_and_pipes_not_at_all(words):
    """No word is broken, and a table is no wider than its words make it."""
    text = " ".join(words)
    piped = _printed(lambda: print_table(("a",), ("b",), [(text, "7")]), "")
    assert f"{text} 7" in (" ".join(line.split()) for line in piped.splitlines())
    shown = _printed(lambda: print_table(("a",), ("b",), [(text, "7")]), "20")
    cells = shown.splitlines()[3:-1]
    assert [word for word in " ".join(cells).split() if word != "7"] == words
    assert max(map(len, cells)) <= max(20, *(len(word) + 4 for word in words))


def test_brackets_are_no_markup():
    """Cells are printed as they are, whatever they contain."""
    printed = _printed(lambda: print_table(("a",), ("b",), [("u[bold]:<f8", "[1]")]))
    assert "u[bold]:<f8" in printed
    assert "[1]" in printed


def _printed(action, columns="80"):
    import contextlib
    import io
    from unittest import mock

    with (
        contextlib.redirect_stdout(io.StringIO()) as stdout,
        mock.patch.dict("os.environ", COLUMNS=columns),
    ):
        action()
    return stdout.getvalue()
