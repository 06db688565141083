"""What the tests of retrieval do again and again."""

from __future__ import annotations

import warnings

import pytest

from feinsum import FeinsumWarning, explain, retrieve
from feinsum.measure import compile_kernel, compute_largest_error, open_device
from feinsum.records import InMemoryStore
from feinsum.retrieval import look_up


def given(*records):
    """A store that holds the records."""
    store = InMemoryStore()
    for record in records:
        store.add(record)
    return store


def retrieved(t_unit, **options):
    """The kernel that comes back, without any warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FeinsumWarning)
        return retrieve(t_unit, **options)


ESTIMATED = {"verify": False, "device": "host", "effort": "estimate"}
"""Predicted recipes, by which nothing is recorded and nothing is timed."""


def predicted(t_unit, **options):
    """What a look-up makes of a kernel of which nothing is recorded."""
    return look_up(t_unit, **{"database": InMemoryStore(), **ESTIMATED, **options})


def why_unchanged(t_unit, **options):
    """The one warning with which the very same kernel comes back."""
    with pytest.warns(FeinsumWarning) as caught:
        assert retrieve(t_unit, **options) is t_unit
    (warning,) = caught
    assert warning.filename == __file__
    assert retrieve(t_unit, on_miss="return", **options) is t_unit
    text = str(warning.message)
    assert text.startswith("kernel returned unchanged: ")
    return text


def why_not_looked_up(t_unit, **options):
    """The same reason, in the warning and in the explanation."""
    text = why_unchanged(t_unit, **options).removeprefix("kernel returned unchanged: ")
    reason, *_, last = explain(t_unit, **options).splitlines()
    assert reason.startswith("not looked up: ")
    assert text.startswith(reason.removeprefix("not looked up: "))
    assert last == "kernel: unchanged"
    return text


def assert_right(example, t_unit):
    """On the device, at every size, the kernel agrees with numpy."""
    compiled = compile_kernel(t_unit, open_device())
    for sizes in example.sizes:
        arguments = example.arguments(sizes)
        kernel = compiled.bind(arguments)
        kernel.poison()
        kernel.run()
        results = kernel.read()
        expected = example.in_numpy(arguments)
        assert set(results) == set(expected)
        for name, right in expected.items():
            assert compute_largest_error(results[name], right) < 1e-13, (name, sizes)


def n_inames(t_unit):
    return len(t_unit.default_entrypoint.all_inames())
