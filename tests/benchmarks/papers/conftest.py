"""What the tests of programs share, for their plans as well."""

from tests.programs.conftest import numpy_computes_blocks

__all__ = ["numpy_computes_blocks"]
