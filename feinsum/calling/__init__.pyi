from .call import call_einsum as call_einsum
from .call import prepare_call as prepare_call
from .kept import clear_call_cache as clear_call_cache
from .kernel import CallKernel as CallKernel
from .prepared import PreparedCall as PreparedCall
from .reading import Reading as Reading
from .simple import read_call as read_call
