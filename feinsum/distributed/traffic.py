"""Work and traffic of a rank, counted during the run, the same way in every engine."""

from __future__ import annotations

from collections import Counter, defaultdict


class Traffic:
    """Elements that one rank received, computed and held.

    Attributes:
        received: elements received unchanged.
        reduced: elements of partial results received.
        messages: number of messages received.
        by_buffer: elements received, by buffer.
        seconds: seconds in leaves, by the number of the group.
        peak_bytes: peak bytes held in buffers, including operands.
    """

    def __init__(self) -> None:
        self.received = self.reduced = self.messages = 0
        self.by_buffer: Counter[str] = Counter()
        self.seconds: defaultdict[int, float] = defaultdict(float)
        self.peak_bytes = self._bytes = 0

    def arrived(self, buffer: str, n_elements: int, *, is_added: bool) -> None:
        """Count a message received into a buffer."""
        self.messages += 1
        self.reduced += n_elements * is_added
        self.received += n_elements * (not is_added)
        self.by_buffer[buffer] += n_elements

    def holds(self, n_bytes: int) -> None:
        """Count a change in the number of bytes held."""
        self._bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self._bytes)

    def copy(self) -> Traffic:
        """A copy of the counts, to continue from."""
        other = Traffic()
        other.__dict__.update(self.__dict__)
        other.by_buffer, other.seconds = self.by_buffer.copy(), self.seconds.copy()
        return other
