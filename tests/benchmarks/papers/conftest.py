"""What the tests of programs share, for their plans as well."""

from tests.distributed.conftest import numpy_computes_blocks

__all__ = ["numpy_computes_blocks"]
