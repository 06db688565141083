"""Programs of einsums: graphs of statements with arbitrary bodies and reductions."""

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
from feinsum.ir.evaluation import evaluate_program
from feinsum.ir.program import Program
from feinsum.ir.reductions import REDUCTIONS
from feinsum.ir.statement import Statement
from feinsum.ir.text import program_from_text
from feinsum.programs.builder import ProgramBuilder, Tensor, program
from feinsum.programs.from_kernel import program_from_kernel
from feinsum.programs.key import (
    PROGRAM_FORM_VERSION,
    ProgramKey,
    canonical_program,
    program_key,
)
from feinsum.programs.local import run_program
from feinsum.programs.macros import (
    attention,
    ccsd_doubles,
    chain,
    feed_forward,
    feed_forward_step,
    layer_norm,
    multi_head_attention,
)
from feinsum.programs.tracing import TracedFunction, trace

__all__ = [
    "PROGRAM_FORM_VERSION",
    "REDUCTIONS",
    "Program",
    "ProgramBuilder",
    "ProgramKey",
    "Statement",
    "Tensor",
    "TracedFunction",
    "attention",
    "canonical_program",
    "ccsd_doubles",
    "chain",
    "evaluate_program",
    "feed_forward",
    "feed_forward_step",
    "layer_norm",
    "multi_head_attention",
    "program",
    "program_from_kernel",
    "program_from_text",
    "program_key",
    "run_program",
    "trace",
]
