"""A listener that keeps the phases of long work."""


class Phases:
    """The phases reported to it, each with its total and the bytes done."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, int]] = []

    def note(self, message: str) -> None:
        """Drop the message."""

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        """Keep the phase."""
        self.found.append((phase, total_bytes, 0))

    def advance(self, count_bytes: int) -> None:
        """Add to the bytes of the last phase."""
        phase, total, done = self.found[-1]
        self.found[-1] = phase, total, done + count_bytes
