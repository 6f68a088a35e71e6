"""What parameters of a checkpoint hold: where they are, how they are sharded, and what their numbers are."""

from collections.abc import Iterator, Sequence

from pydantic import ConfigDict

from reshard.core.reports.blocks import Block, Facts, Line, Table
from reshard.core.reports.report import Report
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, size_text

MAX_PLACES = 16
"""The most files that a report names for a parameter."""
_MAX_FILES = 4
_MAX_LISTED = 200


class _Document(Summary):
    model_config = ConfigDict(frozen=True, defer_build=True, ser_json_inf_nan="strings")


class Place(_Document):
    """A file that holds a parameter, or a shard of it."""

    rank: int
    file: str
    shape: tuple[int, ...]


class Contents(_Document):
    """What was read of a parameter: all of it, or a rank's shard.

    Attributes:
        rank: the rank whose shard it is; None: the whole parameter.
        shape: the shape of what was read.
        size_bytes: its bytes.
        text: the value of a text; None for others.
        count, nan, positive_inf, negative_inf, zeros: elements that are so; None if they are not numbers.
        least, greatest, mean, deviation: of the finite numbers, the last two in float64; None if there is none.
        first: the first elements.
    """

    rank: int | None
    shape: tuple[int, ...]
    size_bytes: int
    text: str | None = None
    count: int | None = None
    nan: int | None = None
    positive_inf: int | None = None
    negative_inf: int | None = None
    zeros: int | None = None
    least: float | int | None = None
    greatest: float | int | None = None
    mean: float | None = None
    deviation: float | None = None
    first: tuple[bool | int | float | str, ...] = ()


class InspectedParameter(_Document):
    """A parameter, where it is, and what it holds.

    Attributes:
        sharding: how it is sharded, in words; empty if that is not known.
        files: how many files hold it or a shard of it.
        places: the first of these; see `MAX_PLACES`.
        contents: what was read: all of it, or each rank's shard.
    """

    name: str
    dtype: str
    sharding: str
    files: int
    places: tuple[Place, ...]
    contents: tuple[Contents, ...]


class InspectionReport(_Document, Report):
    """What parameters of a checkpoint hold."""

    checkpoint: str
    step: str | None
    parameters: tuple[InspectedParameter, ...]
    notes: tuple[str, ...] = ()

    def blocks(self) -> Iterator[Block]:
        """Yield its content: a single parameter as facts, several as a table; then notes."""
        parameters = self.parameters
        if len(parameters) == 1 and len(parameters[0].contents) == 1:
            yield Facts(list(_facts(parameters[0], parameters[0].contents[0])))
        else:
            yield _table(parameters)
        for note in self.notes:
            yield Line(f"note: {note}")


def _facts(parameter: InspectedParameter, contents: Contents) -> Iterator[tuple[str, str]]:
    yield "parameter", parameter.name if contents.rank is None else f"{parameter.name}, rank {contents.rank}'s shard"
    yield "dtype", parameter.dtype
    yield "shape", f"{list(contents.shape)}, {size_text(contents.size_bytes)}"
    if parameter.sharding:
        yield "sharding", parameter.sharding
    shown = ", ".join(place.file for place in parameter.places[:_MAX_FILES])
    more = f" and {parameter.files - _MAX_FILES} more" if parameter.files > _MAX_FILES else ""
    yield "files", f"{counted(parameter.files, 'file')}: {shown}{more}"
    if contents.text is not None:
        yield "text", repr(contents.text)
    if contents.count is not None:
        for name, value in (
            ("min", contents.least),
            ("max", contents.greatest),
            ("mean", contents.mean),
            ("std", contents.deviation),
        ):
            yield name, _number(value)
        yield "NaN", str(contents.nan)
        yield "Inf", str(contents.positive_inf)
        yield "-Inf", str(contents.negative_inf)
        yield "zeros", f"{contents.zeros} of {contents.count}"
    if contents.first:
        yield "first", ", ".join(map(_number, contents.first))


def _table(parameters: Sequence[InspectedParameter]) -> Table:
    has_ranks = any(contents.rank is not None for parameter in parameters for contents in parameter.contents)
    rows = [
        (
            parameter.name,
            *([contents.rank] if has_ranks else []),
            parameter.dtype,
            str(list(contents.shape)),
            *map(_number, (contents.least, contents.greatest, contents.mean)),
            *("" if each is None else each for each in (contents.nan, _inf(contents))),
        )
        for parameter in parameters
        for contents in parameter.contents
    ]
    return Table(
        ("parameter", *(["rank"] if has_ranks else []), "dtype", "shape", "min", "max", "mean", "NaN", "Inf"),
        rows[:_MAX_LISTED],
        right=("rank", "min", "max", "mean", "NaN", "Inf"),
        optional=("dtype", "shape", "mean", "max", "min"),
        keys=("parameter",),
        more=len(rows) - _MAX_LISTED,
    )


def _inf(contents: Contents) -> int | None:
    if contents.positive_inf is None or contents.negative_inf is None:
        return None
    return contents.positive_inf + contents.negative_inf


def _number(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
