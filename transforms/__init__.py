"""Transforms: a registry, documented primitives, families composed of them."""

if __name__ != "feinsum.transforms":
    raise ImportError("import it as feinsum.transforms; the folder is not a package")

from feinsum.transforms import gpu, host, library, nests
from feinsum.transforms.handing import hand_over, note_known, of_this_process, take_over
from feinsum.transforms.plugins import load_plugins
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
    "find_transform",
    "gpu",
    "hand_over",
    "host",
    "in_full",
    "library",
    "load_plugins",
    "nests",
    "of_this_process",
    "register",
    "renewed",
    "suits_device",
    "take_over",
]

load_plugins()
note_known()
