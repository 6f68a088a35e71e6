"""Progress of which only the notes are kept."""

from reshard.core.runtime.progress import SilentProgress


class Notes(SilentProgress):
    """The notes of a run, in their order."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
