"""The weights in a model's directory, complete or not, and what its files and its index contradict each other in."""

from collections.abc import Iterator, Mapping
from threading import Event

from reshard.core.errors import InputError
from reshard.core.files.model import TensorEntry
from reshard.core.layouts.model_files import ModelFiles
from reshard.core.runtime.records import Record
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import counted, listed
from reshard.core.source.findings import Finding, Severity, quoted_names
from reshard.core.storage.urls import Location

FILES, INDEX = "files", "index"
_INCOMPLETE = "the directory was not copied, downloaded or written completely"
_COPY_AGAIN = "copy or export the directory again"
_TWO_EXPORTS = "files of two exports are mixed, or the index belongs to another export"


class ModelWeights(Record):
    """What the files of a model hold.

    Attributes:
        files: the files.
        entries: parameter -> its entry, in the file that comes first.
        owners: parameter -> the names of all files that hold it.
        unusable: file -> why it cannot be read.
    """

    files: ModelFiles
    entries: Mapping[str, TensorEntry]
    owners: Mapping[str, tuple[str, ...]]
    unusable: Mapping[str, str]

    @property
    def size_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(entry.size_bytes for entry in self.entries.values())


def read_model_weights(files: ModelFiles, workers: int) -> ModelWeights:
    """Read the headers of a model's files; those that cannot be read are left out, and named.

    Raises:
        StorageError: a storage failed.
    """

    def read(location: Location) -> Mapping[str, TensorEntry] | InputError:
        try:
            return files.read(location)
        except InputError as error:
            return error

    outcomes = in_threads(read, files.files, workers, Event())
    entries: dict[str, TensorEntry] = {}
    owners: dict[str, tuple[str, ...]] = {}
    unusable: dict[str, str] = {}
    for location, outcome in zip(files.files, outcomes, strict=True):
        if isinstance(outcome, InputError):
            unusable[location.name] = outcome.marked
            continue
        for name, entry in outcome.items():
            if entry.text is None:
                entries.setdefault(name, entry)
                owners[name] = (*owners.get(name, ()), location.name)
    return ModelWeights(files, entries, owners, unusable)


def weight_findings(weights: ModelWeights) -> list[Finding]:
    """What is wrong with the files and the index, whatever the model."""
    return [*_file_findings(weights), *_index_findings(weights)]


def _file_findings(weights: ModelWeights) -> Iterator[Finding]:
    files = weights.files
    if files.missing:
        placed = [name for name, file in files.weights.files.items() if file in files.missing]
        held = f", where the index places {counted(len(placed), 'parameter')}: {quoted_names(placed)}" if placed else ""
        yield Finding(
            check=FILES, found=f"missing: {listed(files.missing)}{held}", means=_INCOMPLETE, advice=_COPY_AGAIN
        )
    for why in weights.unusable.values():
        yield Finding(check=FILES, found=why, means="the file is damaged or incomplete", advice=_COPY_AGAIN)
    doubled = [f"{name!r} in {' and '.join(owners)}" for name, owners in weights.owners.items() if len(owners) > 1]
    if doubled:
        yield Finding(
            check=FILES,
            found=f"several files hold the same parameter: {listed(doubled)}",
            means=_TWO_EXPORTS,
            advice="remove the files of other exports, or export again into an empty directory",
        )
    if files.has_both:
        yield Finding(
            check=FILES,
            found=f"{files.files[0].name} is beside an index that does not list it",
            means="transformers reads the single file and ignores the index; vLLM uses the index",
            advice="remove the single file, or the index and its files",
        )
    elif files.beside:
        reads = "without an index, vLLM reads all files" if files.index is None else "loaders use the index"
        yield Finding(
            check=FILES,
            severity=Severity.PROBLEM if files.index is None and not files.lacks_index else Severity.NOTE,
            found=f"beside the model's files: {listed(files.beside)}",
            means=f"they belong to another export or to an adapter; {reads}",
            advice="remove them if they belong to another export",
        )


def _index_findings(weights: ModelWeights) -> Iterator[Finding]:
    files = weights.files
    if files.lacks_index:
        yield Finding(
            check=INDEX,
            found=f"there is no index for {counted(len(files.files), 'file')}",
            means="transformers finds no weights without it; vLLM reads all files",
            advice=_COPY_AGAIN,
        )
    if files.index is None:
        return
    there = {location.name for location in files.files} - weights.unusable.keys()
    wrong = [
        f"{name!r} in {file}, {_elsewhere(weights.owners.get(name, ()))}"
        for name, file in files.weights.files.items()
        if file in there and file not in weights.owners.get(name, ())
    ]
    if wrong:
        yield Finding(
            check=INDEX,
            found=f"{files.index.name} lists parameters in the wrong file: {listed(wrong, separator='; ')}",
            means=_TWO_EXPORTS,
            advice=_COPY_AGAIN,
        )
    unlisted = [name for name in weights.entries if name not in files.weights.files]
    if unlisted:
        yield Finding(
            check=INDEX,
            found=f"{files.index.name} does not list {counted(len(unlisted), 'parameter')} of its files: "
            f"{quoted_names(unlisted)}",
            means="loaders that use the index, such as transformers 4, do not read them",
            advice="write a new index",
        )
    total = files.weights.total_bytes
    if total is not None and not (files.missing or weights.unusable) and total != weights.size_bytes:
        yield Finding(
            check=INDEX,
            severity=Severity.NOTE,
            found=f"{files.index.name} has total_size {total}, its files hold {weights.size_bytes} bytes of parameters",
            means="the index was written for other files, or counts tied parameters once; loaders only plan memory by "
            "it",
        )


def _elsewhere(owners: tuple[str, ...]) -> str:
    return f"it is in {owners[0]}" if owners else "it is in no file"
