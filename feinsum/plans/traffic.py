"""What a rank really did: counted while it ran, by every engine in the same way."""

from __future__ import annotations

from collections import Counter, defaultdict

__all__ = ["Traffic"]


class Traffic:
    """What one rank received, computed and held, counted as it came.

    Attributes:
        received: elements that came as they are.
        reduced: elements of partial results that came.
        messages: in which they came.
        by_buffer: elements by the buffer that they came into.
        seconds: in leaves, by the number of the group.
        peak_bytes: held in buffers at one time at most, with operands.
    """

    def __init__(self) -> None:
        self.received = self.reduced = self.messages = 0
        self.by_buffer: Counter[str] = Counter()
        self.seconds: defaultdict[int, float] = defaultdict(float)
        self.peak_bytes = self._bytes = 0

    def arrived(self, buffer: str, n_elements: int, *, is_added: bool) -> None:
        """A message came into a buffer."""
        self.messages += 1
        self.reduced += n_elements * is_added
        self.received += n_elements * (not is_added)
        self.by_buffer[buffer] += n_elements

    def holds(self, n_bytes: int) -> None:
        """So many bytes more are held, or fewer."""
        self._bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self._bytes)

    def copy(self) -> Traffic:
        """The same counts, to go on from."""
        other = Traffic()
        other.__dict__.update(self.__dict__)
        other.by_buffer, other.seconds = self.by_buffer.copy(), self.seconds.copy()
        return other
