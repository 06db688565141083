"""The process that builds calls, on the stand-in of a GPU."""

from __future__ import annotations

from feinsum.calling.gpu import builder, building
from feinsum.targets.cuda import session
from tests.targets.cuda.stand_in import StandInDriver


def main():
    session._DRIVERS.append(StandInDriver())
    # what is predicted to be the fastest is taken: the times here mean nothing
    building.PLAUSIBLE = 1.0
    builder._main()


if __name__ == "__main__":
    main()
