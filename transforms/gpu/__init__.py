"""Families for GPUs: neighbouring work-items access neighbouring memory."""

from feinsum.transforms.gpu.elements import GPU_ELEMENTS
from feinsum.transforms.gpu.matrices import GPU_MATRICES
from feinsum.transforms.gpu.mma import GPU_MMA
from feinsum.transforms.gpu.operator_mma import GPU_OPERATOR_MMA
from feinsum.transforms.gpu.operators import GPU_OPERATOR
from feinsum.transforms.gpu.product import GPU_PRODUCT
from feinsum.transforms.gpu.sums import (
    GPU_COLUMNS,
    GPU_POINTS,
    GPU_ROWS,
    GPU_SPLIT_SUM,
)
from feinsum.transforms.gpu.turned import GPU_TURNED

__all__ = [
    "GPU_COLUMNS",
    "GPU_ELEMENTS",
    "GPU_MATRICES",
    "GPU_MMA",
    "GPU_OPERATOR",
    "GPU_OPERATOR_MMA",
    "GPU_POINTS",
    "GPU_PRODUCT",
    "GPU_ROWS",
    "GPU_SPLIT_SUM",
    "GPU_TURNED",
]
