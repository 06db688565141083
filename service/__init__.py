"""The REST service that answers remote builds and teams."""

if __name__ != "feinsum.service":
    raise ImportError("import it as feinsum.service; the folder is not a package")

from feinsum.db.server.api_keys import make_key
from feinsum.service.app import create_app
from feinsum.service.run import run
from feinsum.service.settings import Settings, read_settings

__all__ = ["Settings", "create_app", "make_key", "read_settings", "run"]
