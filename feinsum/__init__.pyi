from .calling import call_einsum as call_einsum
from .calling import contract as contract
from .calling import contract_expression as contract_expression
from .calling import contract_path as contract_path
from .calling import einsum as einsum
from .calling import tensordot as tensordot
from .calling import transpose as transpose
from .canonical import canonicalize as canonicalize
from .canonical import canonicalize_einsum as canonicalize_einsum
from .codegen import generate_loopy as generate_loopy
from .db import open_store as open_store
from .errors import FeinsumError as FeinsumError
from .errors import FeinsumWarning as FeinsumWarning
from .errors import NotAnEinsumError as NotAnEinsumError
from .ir import BatchedEinsum as BatchedEinsum
from .ir import FunctionalBatchedEinsum as FunctionalBatchedEinsum
from .ir import SizeParam as SizeParam
from .ir import array as array
from .ir import batched_einsum as batched_einsum
from .ir import evaluate as evaluate
from .ir import sparse_array as sparse_array
from .measure import measure_giga_op_rate as measure_giga_op_rate
from .measure import timeit as timeit
from .plans import plan as plan
from .programs import program as program
from .raising import identify_as_einsum as identify_as_einsum
from .raising import raise_kernel as raise_kernel
from .records import TransformSpec as TransformSpec
from .retrieval import bound as bound
from .retrieval import explain as explain
from .retrieval import query as query
from .retrieval import retrieve as retrieve
from .tune import autotune as autotune
from .tune import record_facts as record_facts

from .calling import tune as tune  # isort: skip  (hides the room of that name)

__version__: str
