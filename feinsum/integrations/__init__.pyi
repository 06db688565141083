from .array_context import RetrievesEagerly as RetrievesEagerly
from .array_context import RetrievesLazily as RetrievesLazily
from .array_context import eager_array_context as eager_array_context
from .array_context import lazy_array_context as lazy_array_context
from .array_context import transform_program as transform_program
from .c_files import CSource as CSource
from .c_files import c_source as c_source
from .chemistry import use_in_pyscf as use_in_pyscf
