"""The workloads of the paper's experiments: contractions of TCCG, operators of DG."""

from feinsum.suites.suite import (
    EVERYDAY,
    NAMES,
    SuiteEntry,
    read_suite,
    read_suite_documents,
    scale_sizes,
)

__all__ = [
    "EVERYDAY",
    "NAMES",
    "SuiteEntry",
    "read_suite",
    "read_suite_documents",
    "scale_sizes",
]
