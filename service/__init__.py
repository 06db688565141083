"""The REST service that answers remote builds and teams."""

if __name__ != "feinsum.service":
    raise ImportError("import it as feinsum.service; the folder is not a package")

from feinsum.service.app import create_app
from feinsum.service.run import run

__all__ = ["create_app", "run"]
