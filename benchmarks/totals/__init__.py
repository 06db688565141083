"""Whole processes from start to end: programs of einsums, each in fresh processes.

``programs`` lists the programs, whose calls ``chemistry``, ``layers``, ``networks``,
``meshes`` and ``mixtures`` make. ``contestants`` says how each library is called.
``child`` runs one program by one contestant, in a process that ``processes`` starts,
with folders of its own, and times from outside. ``summary`` takes medians over rounds
and compares, ``report`` shows it.
"""
