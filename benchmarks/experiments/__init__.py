"""The paper's experiments: 48 contractions of TCCG and 40 DG operators against rivals.

``entries`` defines the einsums, ``rivals`` and ``ours`` how contenders evaluate them,
``terms`` the settings of memory and threads. ``contest`` times one entry in a separate
process (``child``, started by ``isolation``). ``results`` stores and compares samples,
``report`` and ``figures`` print and draw them, and ``command`` runs it all.

Source: paper, sections 8.1 and 8.2.
"""
