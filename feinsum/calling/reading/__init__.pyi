from .dtypes import first_uses as first_uses
from .einsum import Feed as Feed
from .einsum import Reading as Reading
from .einsum import read_shapes as read_shapes
from .einsum import reading_of as reading_of
from .einsum import terms_of as terms_of
