"""The AUC of a window by all its pairs."""

from __future__ import annotations


class Window:
    """The latest events in a list, and every pair of them looked at."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.events: list[tuple[float, int]] = []

    def add(self, score: float, label: int) -> None:
        self.events = [*self.events, (score, label)][-self.size :]

    def revert(self, score: float, label: int) -> bool:
        for i in reversed(range(len(self.events))):
            if self.events[i] == (score, label):
                del self.events[i]
                return True
        return False

    @property
    def counts(self) -> tuple[int, int, float]:
        """Positives, negatives, and 2 for each pair that is ranked rightly and 1 for each tie."""
        high = [score for score, label in self.events if label]
        low = [score for score, label in self.events if not label]
        wins = sum(2.0 * (a > b) + 1.0 * (a == b) for a in high for b in low)
        return len(high), len(low), wins
