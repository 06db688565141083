"""Programs of other packages compute the same with feinsum, from start to end."""

from __future__ import annotations

import json

import pytest

from benchmarks.users import PROGRAMS, main, run_script

pytestmark = pytest.mark.usefixtures("usual_calls")


@pytest.mark.parametrize(
    "name",
    [
        "pyscf-mp2",
        pytest.param("pyscf-mp2-benzene", marks=pytest.mark.long),
        pytest.param("pyscf-rccsd-benzene", marks=pytest.mark.long),
        "cotengra-200",
        "opt_einsum-loop",
    ],
)
def test_both_ways_compute_the_same(name, capsys):
    """Results are compared before seconds are printed."""
    pytest.importorskip(name.partition("-")[0])
    main(["--only", f"^{name}$", "--tiny", "--rounds", "1", "--json"])
    (seconds,) = json.loads(capsys.readouterr().out).values()
    assert {*seconds} == {"plain", "first", "second"}
    assert min(seconds.values()) > 0


def test_a_script_that_fails_says_why(tmp_path):
    """The last line of its traceback."""
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_script("1 / 0", tmp_path)


def test_at_most_five_lines_differ():
    for program in PROGRAMS.values():
        plain, ours = (
            program.write_text(is_ours=is_ours, is_tiny=False).splitlines()
            for is_ours in (False, True)
        )
        assert 1 <= sum(a != b for a, b in zip(plain, ours, strict=True)) <= 5
