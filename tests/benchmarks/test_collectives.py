"""The elements that collectives of HLO move."""

from __future__ import annotations

import pytest

from benchmarks.programs_moved import count_moved


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ("%a = f64[8,4]{1,0} all-gather(%p), replica_groups=[2,4]<=[8]", 2 * 3 * 32),
        ("%a = f64[6]{0} all-reduce(%p), replica_groups={{0,1},{2,3}}", 2 * 2 * 6),
        ("%a = f64[2,3] reduce-scatter(%p), replica_groups={{0,1,2,3}}", 4 * 3 * 6),
        ("%a = (f64[2], f64[2]) all-to-all(%p, %q), replica_groups={{0,1}}", 4),
        (
            "%a = f64[5] collective-permute(%p), source_target_pairs={{0,1},{2,2}}",
            5,
        ),
        ("%a = f64[] all-reduce-start(%p), replica_groups={}", 2 * 7),
        ("%a = f64[8,4]{1,0} dot(%p, %q)", 0),
    ],
)
def test_what_all_devices_receive(line, moved):
    """Of eight devices, but for what they have already."""
    assert count_moved(f"HloModule m\n  {line}\n", 8) == moved
