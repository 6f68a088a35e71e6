"""CRCs of source tensors, checked with the bytes that a conversion reads anyway.

A tensor in a file of PyTorch's has a CRC-32 over its storage, which may have other tensors in it, too. What target
ranks do not read, as those that an earlier run has done, is read before the target is committed. Bytes that are read
again are not checked again.
"""

from collections.abc import Callable
from contextlib import closing
from threading import Event

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.errors import ConversionError
from reshard.core.files.model import StoredCrc
from reshard.core.files.remote_reads import read_in_blocks
from reshard.core.files.torch_zip import crc_problem
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.threads import in_threads
from reshard.core.storage.reading import SourceFile
from reshard.core.transfer.read_crcs import CrcParts, ExtentCrc, FileCrcs


class SourceCrcs:
    """The CRCs of all tensors that a plan reads; for any number of threads.

    Empty, and false, if the source has none, or if they were checked when it was opened.
    """

    def __init__(self, plan: ConversionPlan) -> None:
        self._records: dict[str, CatalogRecord] = {}
        self._names: dict[tuple[str, StoredCrc], list[str]] = {}
        with_crcs = [record for record in plan.inputs.catalog.records.values() if record.index.crcs]
        names = _source_names(plan) if with_crcs else set()
        for record in with_crcs:
            for name, stored in record.index.crcs.items():
                if name in names and stored.extent.length:
                    self._records.setdefault(record.location, record)
                    self._names.setdefault((record.location, stored), []).append(name)
        self._sums = {place: ExtentCrc(place[1].extent) for place in self._names}
        of_files: dict[str, list[ExtentCrc]] = {}
        for (location, _), found in self._sums.items():
            of_files.setdefault(location, []).append(found)
        self._files = {location: FileCrcs(of_file) for location, of_file in of_files.items()}
        self.read_bytes = 0
        """Bytes that were read for no other reason than their CRC."""

    def __bool__(self) -> bool:
        """True if there are CRCs to check."""
        return bool(self._files)

    def watch(self, record: CatalogRecord, file: SourceFile) -> SourceFile:
        """Return the file of a source rank, whose reads are counted from now on."""
        crcs = self._files.get(record.location)
        return crcs.watched(file) if crcs else file

    def add_parts(self, parts: CrcParts) -> None:
        """Add what another process has read."""
        for location, of_file in parts.items():
            crcs = self._files.get(location)
            if crcs is not None:
                for start, stop, crc in of_file.tolist():
                    crcs.add_part(start, stop, crc)

    def left_bytes(self) -> int:
        """Bytes of storages that were not read yet."""
        return sum(length for file in self._files.values() for _, length in file.left())

    def read_rest(
        self,
        open_unchanged: Callable[[CatalogRecord], SourceFile],
        workers: int,
        stop: Event,
        advance: Callable[[int], None],
    ) -> None:
        """Read what was not read yet; `open_unchanged` opens the files.

        Raises:
            CatalogError: a file changed.
            ConversionError: some of it is still missing.
            StorageError: a file cannot be read.
        """

        def read(location: str) -> int:
            crcs = self._files[location]
            ranges = list(crcs.left())
            position, count, last = 0, 0, -1
            with closing(open_unchanged(self._records[location])) as file:
                for number, block in read_in_blocks(file, ranges):
                    position = position if number == last else ranges[number][0]
                    crcs.add(position, block, is_rest=True)
                    position, last = position + len(block), number
                    count += len(block)
                    advance(len(block))
            return count

        unfinished = [location for location, file in self._files.items() if any(file.left())]
        self.read_bytes += sum(in_threads(read, unfinished, workers, stop))
        if self.left_bytes():
            raise ConversionError(f"{self.left_bytes()} bytes of the source have no CRC. This is a bug in reshard")

    def problems(self) -> dict[tuple[str, str], str]:
        """The tensors in storages without their CRC, of those read whole: (URL of the file, name) -> what is wrong."""
        problems: dict[tuple[str, str], str] = {}
        for (location, stored), names in self._names.items():
            actual = self._sums[location, stored].actual
            if actual is not None and actual != stored.crc:
                problem = crc_problem(location, names[0], stored, actual)
                problems |= {(location, name): problem for name in names}
        return problems


def _source_names(plan: ConversionPlan) -> set[str]:
    names = {source.name for each in plan.match.resharded for source in each.sources}
    return names | {each.source_name for each in plan.match.passed_through}
