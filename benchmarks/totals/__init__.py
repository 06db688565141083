"""Time whole processes: programs of einsums, each in fresh processes.

``programs`` lists the programs, whose calls are made by ``loops``, ``networks`` and
``mixtures``. ``contestants`` defines the libraries. ``child`` runs one program with one
library, in a process that ``processes`` starts in separate folders, and times.
``summary`` computes medians and ratios, and ``report`` prints them.
"""
