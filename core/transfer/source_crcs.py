"""CRCs of source tensors, checked with the bytes that a conversion reads anyway.

A tensor of a DCP checkpoint has a CRC-32 over its storage. What target ranks do not read, as those that an earlier run
has done, is read before the target is committed. Bytes that are read again are not checked again.
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
from reshard.core.tensor.slices import Extent
from reshard.core.transfer.read_crcs import CrcParts, FileCrcs, TensorCrc


class SourceCrcs:
    """The CRCs of all tensors that a plan reads; for any number of threads.

    Empty, and false, if the source has none, or if they were checked when it was opened.
    """

    def __init__(self, plan: ConversionPlan) -> None:
        self._records: dict[str, CatalogRecord] = {}
        self._tensors: dict[str, list[tuple[TensorCrc, StoredCrc]]] = {}
        with_crcs = [record for record in plan.inputs.catalog.records.values() if record.index.crcs]
        names = _source_names(plan) if with_crcs else set()
        known: set[tuple[str, Extent]] = set()
        for record in with_crcs:
            for name, stored in record.index.crcs.items():
                if name in names and stored.extent.length and (record.location, stored.extent) not in known:
                    known.add((record.location, stored.extent))  # parameters may be parts of one stored tensor
                    self._records.setdefault(record.location, record)
                    tensor = TensorCrc(name, stored.extent)
                    self._tensors.setdefault(record.location, []).append((tensor, stored))
        self._files = {
            location: FileCrcs(tensor for tensor, _ in of_file) for location, of_file in self._tensors.items()
        }
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
        """The tensors that do not have their CRC, of those read whole: (URL of the file, name) -> what is wrong."""
        return {
            (location, tensor.name): crc_problem(location, tensor.name, stored, tensor.actual)
            for location, of_file in self._tensors.items()
            for tensor, stored in of_file
            if tensor.actual is not None and tensor.actual != stored.crc
        }


def _source_names(plan: ConversionPlan) -> set[str]:
    names = {source.name for each in plan.match.resharded for source in each.sources}
    return names | {each.source_name for each in plan.match.passed_through}
