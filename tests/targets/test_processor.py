"""The processor of a machine, read from what Linux says of it."""

from __future__ import annotations

import platform
from importlib.resources import files
from pathlib import Path

import pytest

from feinsum.records import Processor, from_json, to_json
from feinsum.targets import processor
from feinsum.targets.processor import (
    MASKED,
    describe_host_processor,
    describe_processor,
)

NOWHERE = Path("/a/folder/that/is/not/there")

MACHINES = {
    "zen4-vm": ("x86_64", "AuthenticAMD", (25, 17, 1), "zen4", 2),
    "zen5-vm": ("x86_64", "AuthenticAMD", (26, 2, 1), "zen5", 2),
    "zen5-hiding-vm": ("x86_64", "AuthenticAMD", (26, 2, 1), "zen5", 2),
    "sapphirerapids": ("x86_64", "GenuineIntel", (6, 143, 8), "sapphirerapids", 2),
    "masked-vm": ("x86_64", "GenuineIntel", (-1, -1, -1), "sapphirerapids", 1),
    "neoverse_v1": ("aarch64", "ARM", (8, 0xD40, 1), "neoverse_v1", -1),
    "bare-arm": ("aarch64", "", (-1, -1, -1), "aarch64", -1),
    "empty": ("x86_64", "", (-1, -1, -1), "", -1),
}
"""Recorded texts; of virtual machines those that hide what hypervisors hide."""

SAMPLES = [
    sample
    for sample in (files("archspec") / "json" / "tests" / "targets").iterdir()
    if sample.name.startswith("linux-")
]


def read(name: str, system: Path = NOWHERE) -> Processor:
    text = Path(__file__).with_name("cpuinfo").joinpath(f"{name}.txt").read_text()
    return describe_processor(text, MACHINES[name][0], system)


@pytest.mark.parametrize("name", MACHINES)
def test_recorded_machines(name: str) -> None:
    """Vendor, numbers and cores are those of the text; the name is archspec's."""
    found = read(name)
    numbers = found.family, found.model, found.stepping
    _, *expected = MACHINES[name]
    got = [found.vendor, numbers, found.microarchitecture, found.n_cores]
    assert got == expected
    assert found.is_known == (name != "empty")
    assert found.cache_bytes == {}


def test_microarchitectures_are_those_of_archspec() -> None:
    """Its own recorded machines get the names that it gives them; most samples are of
    x86-64 and of ARM.
    """
    assert len(SAMPLES) > 30
    for sample in SAMPLES:
        text = sample.read_text()
        machine = "aarch64" if "CPU implementer" in text else "x86_64"
        found = describe_processor(text, machine, NOWHERE)
        if found.is_known:
            assert found.microarchitecture == sample.name.rpartition("-")[2]


def test_one_name_for_two_processors() -> None:
    """Virtual machines on Zen 4 and Zen 5 are told apart, though both say AMD EPYC."""
    zen4, zen5 = read("zen4-vm"), read("zen5-vm")
    assert zen4 != zen5
    assert set(zen5.features) - set(zen4.features) >= {"avx_vnni", "movdiri"}


def test_features_are_those_that_code_is_made_of() -> None:
    """Sorted, and nothing of the system, the hypervisor or the cache of addresses."""
    features = read("zen4-vm").features
    assert features == tuple(sorted(set(features)))
    assert {"avx2", "avx512f", "avx512_bf16", "fma"} <= set(features)
    assert not {"hypervisor", "syscall", "fpu", *MASKED} & set(features)


def test_what_hypervisors_mask_does_not_matter() -> None:
    """A processor is the same, whether the masked features are seen or not."""
    text = Path(__file__).with_name("cpuinfo").joinpath("zen4-vm.txt").read_text()
    seen = text.replace(" hypervisor", "".join(f" {name}" for name in sorted(MASKED)))
    assert describe_processor(seen, "x86_64", NOWHERE) == read("zen4-vm")


def test_an_unknown_vendor_gets_a_generic_name() -> None:
    """So does a processor that is older than all that archspec knows."""
    text = Path(__file__).with_name("cpuinfo").joinpath("zen4-vm.txt").read_text()
    found = describe_processor(
        text.replace("AuthenticAMD", "Nobody"), "x86_64", NOWHERE
    )
    assert (found.vendor, found.microarchitecture) == ("Nobody", "x86_64_v4")


def test_an_unknown_architecture_is_unknown() -> None:
    """Where archspec knows no feature, nothing is claimed."""
    found = describe_processor("processor: 0\nisa: rv64gc", "a-new-one", NOWHERE)
    assert (found.microarchitecture, found.is_known) == ("", False)


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Two cores of two threads each, and the caches of the first."""
    for n, siblings in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        folder = tmp_path / f"cpu{n}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    caches = [("1", "Data", "48K"), ("1", "Instruction", "32K")]
    caches += [("2", "Unified", "1024K"), ("3", "Unified", "32M"), ("4", "Odd", "?")]
    for n, values in enumerate(caches):
        folder = tmp_path / "cpu0" / "cache" / f"index{n}"
        folder.mkdir(parents=True)
        for name, value in zip(("level", "type", "size"), values, strict=True):
            (folder / name).write_text(f"{value}\n")
    (tmp_path / "cpufreq").mkdir()
    return tmp_path


def test_cores_and_caches_of_the_system(system: Path) -> None:
    """The folders of Linux say how many cores there are, and which caches they have;
    caches of instructions, and what cannot be read, are left out.
    """
    found = read("neoverse_v1", system)
    assert found.n_cores == 2
    assert found.cache_bytes == {"L1d": 48 * 2**10, "L2": 2**20, "L3": 32 * 2**20}


@pytest.mark.parametrize("name", ["level", "type", "size"])
def test_a_cache_that_is_not_described_is_left_out(system: Path, name: str) -> None:
    """Containers may hide any file."""
    (system / "cpu0" / "cache" / "index2" / name).unlink()
    assert set(read("zen4-vm", system).cache_bytes) == {"L1d", "L3"}


def test_this_machine() -> None:
    """It is known, the same each time, and a part of documents that read back."""
    found = describe_host_processor()
    assert describe_host_processor() is found
    assert from_json(Processor, to_json(found)) == found
    if platform.machine() == "x86_64":
        assert found.is_known
        assert "sse2" in found.features
        assert found.microarchitecture
        assert found.n_cores >= 1


def test_nothing_to_read_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any file of the system the processor is unknown."""
    monkeypatch.setattr(processor, "CPUINFO", NOWHERE)
    monkeypatch.setattr(processor, "SYSTEM", NOWHERE)
    found = describe_host_processor.__wrapped__()
    assert found == Processor("", -1, -1, -1, "", (), -1, {})
