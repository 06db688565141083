"""The experiments of the paper: 48 contractions and 40 operators against rivals.

``entries`` says what is evaluated, ``rivals`` and ``ours`` how each contender does
it, ``terms`` with which memory, ``contest`` times one entry in a process of its own
(``child``, started by ``isolation``), ``results`` keeps and compares what came of it,
``report`` and ``figures`` show it, ``command`` puts them together.

Source: paper, sections 8.1 and 8.2.
"""
