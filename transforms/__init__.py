"""Transforms: a registry, documented primitives, families composed of them."""

if __name__ != "feinsum.transforms":
    raise ImportError(
        "the folder 'transforms' is installed as 'feinsum.transforms'; import it by that name"
    )
