"""What a scan found: the parameters that have NaN or Inf, how many, and where."""

from collections.abc import Iterator

from pydantic import computed_field

from reshard.core.reports.blocks import GAP, Block, Line, Table
from reshard.core.reports.report import Report
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, listed

MAX_PLACES = 16
"""The most places of one parameter that a report has."""
_MAX_LISTED = 50
_MAX_ZEROS = 8
_HEADERS = ("parameter", "file", "NaN", "Inf", "first at", "of the whole")


class ScanPlace(Summary):
    """The NaN and Inf of a parameter in one file.

    Attributes:
        rank: the rank whose file it is; where files are not ranks', the number of the file.
        file: the file, below the checkpoint.
        nan: how many of its elements are NaN.
        inf: how many are Inf, of either sign.
        first: the index of the first of them in the file's tensor.
        first_in_whole: its index in the whole tensor; None if it is not known how the tensor is sharded.
    """

    rank: int
    file: str
    nan: int
    inf: int
    first: tuple[int, ...]
    first_in_whole: tuple[int, ...] | None = None


class NonFiniteParameter(Summary):
    """A parameter that has NaN or Inf.

    Attributes:
        nan: how many elements are NaN, in all files together; replicas count one by one.
        inf: how many are Inf, of either sign.
        files: how many files have any.
        places: the first of these files, by rank; see `MAX_PLACES`.
    """

    name: str
    dtype: str
    nan: int
    inf: int
    files: int
    places: tuple[ScanPlace, ...]


class ScanReport(Report):
    """What a scan of all floating-point parameters found.

    Attributes:
        checkpoint: URL of the checkpoint.
        step: the step that was read, if file names carry one.
        files: how many files were read.
        parameters: how many floating-point parameters they hold.
        non_finite: those with NaN or Inf, in the order of the files.
        zeros: parameters all of whose elements are zero, in all files.
        notes: what was chosen, and what was not scanned, in sentences.
        read_bytes: bytes of contents that were read.
        seconds: how long it took.
    """

    checkpoint: str
    step: str | None
    files: int
    parameters: int
    non_finite: tuple[NonFiniteParameter, ...]
    zeros: tuple[str, ...]
    notes: tuple[str, ...]
    read_bytes: int
    seconds: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def finite(self) -> bool:
        """True if no parameter has NaN or Inf."""
        return not self.non_finite

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        files = counted(self.files, "file")
        if self.finite:
            return f"no NaN or Inf in {counted(self.parameters, 'floating-point parameter')}, {files}"
        nan, inf = sum(each.nan for each in self.non_finite), sum(each.inf for each in self.non_finite)
        places = sum(each.files for each in self.non_finite)
        return (
            f"{nan} NaN and {inf} Inf in {len(self.non_finite)} of {self.parameters} floating-point parameters, "
            f"{places} {'place' if places == 1 else 'places'} in {files}"
        )

    def blocks(self) -> Iterator[Block]:
        """Yield its content: the answer, where NaN and Inf are, and notes."""
        yield Line(self.verdict)
        if self.non_finite:
            rows = [row for parameter in self.non_finite for row in _rows(parameter)]
            more = sum(parameter.files for parameter in self.non_finite) - min(len(rows), _MAX_LISTED)
            yield GAP
            yield Table(_HEADERS, rows[:_MAX_LISTED], right=("NaN", "Inf"), optional=("of the whole",))
            if more > 0:
                yield Line(f"and {more} more; the JSON report lists the first {MAX_PLACES} files of each parameter")
            yield GAP
        if self.zeros:
            yield Line(f"note: zero throughout: {listed(list(self.zeros), _MAX_ZEROS)}")
        for note in self.notes:
            yield Line(f"note: {note}")


def _rows(parameter: NonFiniteParameter) -> list[tuple[object, ...]]:
    return [
        (
            parameter.name,
            place.file,
            place.nan,
            place.inf,
            str(list(place.first)),
            "" if place.first_in_whole is None else str(list(place.first_in_whole)),
        )
        for place in parameter.places
    ]
