"""Transforms: a registry, documented primitives, families composed of them."""

if __name__ != "feinsum.transforms":
    raise ImportError("import it as feinsum.transforms; the folder is not a package")

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
from feinsum.transforms import gpu, host, library, nests
from feinsum.transforms.plugins import (
    export_transforms,
    import_transforms,
    list_local_transforms,
    load_plugins,
    note_builtin,
)
from feinsum.transforms.registry import (
    ALL_DEVICES,
    REGISTRY,
    Parameters,
    Space,
    Transform,
    apply_spec,
    check_spec,
    find_applicable_transforms,
    find_transform,
    list_configurations,
    register,
    suits_device,
    with_named_steps,
    with_newest_version,
)

__all__ = [
    "ALL_DEVICES",
    "REGISTRY",
    "Parameters",
    "Space",
    "Transform",
    "apply_spec",
    "check_spec",
    "export_transforms",
    "find_applicable_transforms",
    "find_transform",
    "gpu",
    "host",
    "import_transforms",
    "library",
    "list_configurations",
    "list_local_transforms",
    "load_plugins",
    "nests",
    "register",
    "suits_device",
    "with_named_steps",
    "with_newest_version",
]

load_plugins()
note_builtin()
