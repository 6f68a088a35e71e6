"""MindSpore's `CheckpointManager`: the checkpoint files of one prefix in a directory, and the removal of old ones.

Directories and files may be URLs. A file that cannot be removed is a Python warning; MindSpore writes it to its log.
"""

import time
import warnings
from os.path import splitext

from reshard.core.errors import StorageError
from reshard.core.storage.file_versions import read_stamps
from reshard.core.storage.publishing import list_names
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import parse_url


class CheckpointManager:
    """Knows the checkpoint files of a training, and removes some of them."""

    def __init__(self, format: str = "ckpt") -> None:
        self._format = format
        self._files: list[str] = []

    @property
    def ckpoint_filelist(self) -> list[str]:
        """Paths of the files, as of the last update."""
        return self._files

    @property
    def ckpoint_num(self) -> int:
        """Number of the files."""
        return len(self._files)

    def update_ckpoint_filelist(self, directory: str, prefix: str) -> None:
        """Look for files that are named by the prefix and numbers, such as `prefix-3_10.ckpt`."""
        location = parse_url(directory)
        ending = f".{self._format}"
        self._files = [
            str(location.child(name))
            for name in list_names(location)
            if splitext(name)[1] == ending
            and name.startswith(f"{prefix}-")
            and not any(map(str.isalpha, name[len(prefix) : -len(ending)]))
        ]

    def remove_ckpoint_file(self, file_name: str) -> None:
        """Remove a file; warn if that fails."""
        try:
            remove_file(parse_url(file_name))
        except StorageError as error:
            warnings.warn(f"an old checkpoint file was not removed: {error}", stacklevel=2)
            return
        self._files = [file for file in self._files if file != file_name]

    def remove_oldest_ckpoint_file(self) -> None:
        """Remove the file that was changed first.

        Raises:
            IndexError: there is none.
        """
        oldest = self.oldest()
        if oldest is None:
            raise IndexError("there is no checkpoint file to remove: update_ckpoint_filelist has found none")
        self.remove_ckpoint_file(oldest)

    def keep_one_ckpoint_per_minutes(self, minutes: int, cur_time: float) -> None:
        """Of the files changed within so many minutes before `cur_time`, remove all but the oldest."""
        for file in self.recent_but_first(minutes, cur_time):
            self.remove_ckpoint_file(file)

    def oldest(self) -> str | None:
        """Return the file that was changed first; None if there is none."""
        times = self._times()
        return min(times, key=times.__getitem__, default=None)

    def recent_but_first(self, minutes: int, now: float) -> list[str]:
        """Return the files that `keep_one_ckpoint_per_minutes` removes."""
        recent = {file: changed for file, changed in self._times().items() if now - changed < 60 * minutes}
        first = min(recent, key=recent.__getitem__, default="")
        return [file for file in recent if file != first]

    def _times(self) -> dict[str, float]:
        stamps = read_stamps(map(parse_url, self._files))
        # a file that vanished meanwhile is not kept in place of another
        now = time.time()
        return {
            file: now if stamp.changed is None else stamp.changed
            for file, stamp in zip(self._files, stamps, strict=True)
            if stamp is not None
        }
