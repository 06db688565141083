"""Processors: when one is known, and how it reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feinsum.records import Processor
from tests.strategies import CPU, PROCESSOR

UNKNOWN = Processor("", -1, -1, -1, "", (), -1, {})
"""What a system says that says nothing."""


def test_order_of_caches_does_not_matter():
    """Processors with the same caches are equal, and hash alike."""
    backwards = dict(reversed(PROCESSOR.cache_bytes.items()))
    again = replace(PROCESSOR, cache_bytes=backwards)
    assert (again, hash(again)) == (PROCESSOR, hash(PROCESSOR))


def test_a_cpu_is_identified_by_its_processor_alone():
    """Names of CPUs do not tell them apart, nor does a system that says nothing."""
    assert CPU.is_identified
    assert not replace(CPU, processor=None).is_identified
    assert not replace(CPU, processor=UNKNOWN).is_identified
    assert replace(CPU, kind="gpu", processor=None).is_identified


def test_masked_numbers_do_not_hide_a_processor():
    """Features tell, where a hypervisor hides family, model and stepping."""
    masked = replace(PROCESSOR, family=-1, model=-1, stepping=-1)
    assert replace(CPU, processor=masked).is_identified


@pytest.mark.parametrize("processor", [None, UNKNOWN])
def test_an_unknown_microarchitecture_has_no_name(processor):
    """None stands for all that is not known."""
    assert replace(CPU, processor=processor).microarchitecture is None
    assert CPU.microarchitecture == "zen4"


def test_words():
    """A line names what is known, and nothing that is not."""
    assert str(PROCESSOR) == "zen4, 8 cores, L1d 32 KiB, L2 1 MiB, avx2 avx512f"
    assert str(UNKNOWN) == "unknown microarchitecture"
    assert replace(PROCESSOR, cache_bytes={"L2": 1000}).caches == "L2 1000 B"
