"""The program: ``feinsum``, or ``python -m feinsum``."""

import sys

from feinsum.errors import FeinsumError
from feinsum.extras import require_extra


def main() -> None:
    """Run the command line, or report which package it lacks."""
    try:
        for package in ("typer", "rich"):
            with require_extra(package, "cli", "the command line"):
                __import__(package)
    except FeinsumError as error:
        sys.exit(f"feinsum: [{error.code}] {error}")
    from feinsum.cli import main as run

    run()


if __name__ == "__main__":
    main()
