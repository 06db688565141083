"""Transforms: a registry, documented primitives, families composed of them."""

if __name__ != "feinsum.transforms":
    raise ImportError("import it as feinsum.transforms; the folder is not a package")

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
from feinsum.transforms import gpu, host, library, nests
from feinsum.transforms.plugins import (
    export_transforms,
    import_transforms,
    load_plugins,
    local_transforms,
    note_builtin,
)
from feinsum.transforms.registry import (
    ALL_DEVICES,
    REGISTRY,
    Parameters,
    Space,
    Transform,
    applicable_transforms,
    apply_spec,
    check_spec,
    configurations,
    find_transform,
    in_full,
    register,
    renewed,
    suits_device,
)

__all__ = [
    "ALL_DEVICES",
    "REGISTRY",
    "Parameters",
    "Space",
    "Transform",
    "applicable_transforms",
    "apply_spec",
    "check_spec",
    "configurations",
    "export_transforms",
    "find_transform",
    "gpu",
    "host",
    "import_transforms",
    "in_full",
    "library",
    "load_plugins",
    "local_transforms",
    "nests",
    "register",
    "renewed",
    "suits_device",
]

load_plugins()
note_builtin()
