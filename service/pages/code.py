"""The program that prints the code of a recipe."""

from __future__ import annotations

from feinsum.records import TuningRecord
from feinsum.records.environment import HOST_PLATFORM

__all__ = ["code_of"]

PROGRAM = """\
import feinsum
import loopy as lp
from feinsum.ir import from_text
from feinsum.raising import identify_as_einsum
from feinsum.transforms import apply_spec

einsum = from_text({text!r})
recipe = feinsum.TransformSpec.parse({spec!r})
kernel = feinsum.generate_loopy(einsum{target})
kernel, nest = identify_as_einsum(kernel, einsum, long_extent={never})
kernel = apply_spec(recipe, kernel, nest)
print(lp.generate_code_v2(kernel).device_code())
"""

NEVER_LONG = 1 << 62
"""No extent counts as long: the text says already which are parameters."""


def code_of(record: TuningRecord) -> str:
    """A program that prints the code of a recipe, for a reader to copy."""
    is_host = record.environment.device.platform == HOST_PLATFORM
    return PROGRAM.format(
        text=record.workload_text,
        spec=str(record.spec),
        never=NEVER_LONG,
        target="" if is_host else ", target=lp.PyOpenCLTarget()",
    )
