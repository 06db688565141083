"""Maps and reductions of a program as C, compiled on this machine."""
