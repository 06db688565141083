"""The workloads of the paper's experiments: contractions of TCCG, operators of DG."""

from feinsum.suites.suite import (
    EVERYDAY,
    NAMES,
    SuiteEntry,
    documents,
    read_suite,
    scaled_sizes,
)

__all__ = ["EVERYDAY", "NAMES", "SuiteEntry", "documents", "read_suite", "scaled_sizes"]
