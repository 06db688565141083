"""Run as ``python -m feinsum``."""

from feinsum.cli import main

if __name__ == "__main__":
    main()
