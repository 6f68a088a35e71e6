"""Writes a parameter of a checkpoint into a `.npy` file, block by block.

numpy has no dtype for bfloat16 and floats of 8 bits: their bytes are written as elements of numpy's void type, `|V2`
and `|V1`. Any numpy loads these, nobody computes with them by mistake, and a view gives them their type back.
"""

import io
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from reshard.core.conversion.opened_parameters import OpenedParameters, Readable
from reshard.core.errors import InputError, TargetError
from reshard.core.files.numpy_values import bytes_of
from reshard.core.reports.blocks import Block, Facts, Line
from reshard.core.reports.report import Report
from reshard.core.request.source import OpenRequest
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.wording import listed, size_text
from reshard.core.storage.listing import kind_of
from reshard.core.storage.store import DIRECTORY
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_file
from reshard.core.text.options import option, source_option

_SUFFIX = ".npy"
_FLOAT32: np.dtype[Any] = np.dtype("<f4")

Cast = Literal["", "float32"]


class Extraction(Report):
    """What was written.

    Attributes:
        name: the parameter.
        rank: the rank whose shard it is; None: all of it.
        file: the file.
        dtype: numpy's name of the elements' type.
        shape: the shape of the array.
        size_bytes: bytes of its elements.
        load: Python's expression that loads it, with its type.
        notes: what was chosen and found when the checkpoint was opened, in sentences.
    """

    name: str
    rank: int | None
    file: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    load: str
    notes: tuple[str, ...] = ()

    def blocks(self) -> Iterator[Block]:
        """Yield its content: what was written, and how to load it."""
        part = "" if self.rank is None else f", rank {self.rank}'s shard"
        size = f"{self.dtype} {list(self.shape)}, {size_text(self.size_bytes)}"
        yield Facts([(self.name, f"{size}{part}"), ("written to", self.file), ("load it", self.load)])
        yield from (Line(f"note: {note}") for note in self.notes)


def extract_parameter(
    request: OpenRequest, name: str, file: str, *, rank: int | None = None, overwrite: bool = False, cast: Cast = ""
) -> Extraction:
    """Write a parameter into a `.npy` file, which appears when it is whole.

    Args:
        request: which checkpoint, by which strategy; its storages and keys have to be in force.
        name: the parameter.
        file: the URL of the file.
        rank: only this rank's shard; None: all of it.
        overwrite: replace a file.
        cast: `float32` for floats of 16 or 8 bits, each of which has it exactly; empty: as they are.

    Raises:
        InputError: the checkpoint cannot be used, has no such parameter or rank, or it is not an array of numbers.
        TargetError: the file is there already.
        StorageError: reading or writing failed.
    """
    location = parse_url(file)
    if not location.name.endswith(_SUFFIX):
        raise InputError(f"{location}: the file name must end in {_SUFFIX}")
    kind = kind_of(location)
    if kind == DIRECTORY:
        raise InputError(f"{location}: is a directory; name a file")
    if kind is not None and not overwrite:
        raise TargetError(f"{location}: already exists: pass {option('overwrite', True)} to replace it")
    opened = OpenedParameters(request)
    try:
        readable = _chosen(opened, name, rank)
        dtype = _FLOAT32 if cast else readable.numpy_dtype
        _check_cast(readable, cast)
        current_progress().begin("extracting", readable.size_bytes)
        with write_file(location) as output:
            output.write(_header(dtype, readable.shape))
            for values in readable.blocks():
                output.write(bytes_of(values.astype(dtype) if cast else values))
                current_progress().advance(values.nbytes)
    finally:
        opened.close()
    return Extraction(
        name=name,
        rank=readable.rank,
        file=str(location),
        dtype=dtype.name,
        shape=readable.shape,
        size_bytes=math.prod(readable.shape) * dtype.itemsize,
        load=_load_text(dtype, location.path if location.store.has_paths else location.name),
        notes=opened.notes,
    )


def _chosen(opened: OpenedParameters, name: str, rank: int | None) -> Readable:
    [found, *others] = opened.readable(opened.exact(name), rank)
    if others:
        ranks = listed([f"rank {each.rank}" for each in (found, *others)])
        raise InputError(
            f"{opened.files.catalog.url}: parameter {name!r} is on {ranks}, and nothing says "
            f"how it is sharded: name the strategy with {source_option('source_strategy')}, or one rank with "
            f"{option('rank', found.rank)}"
        )
    return found


def _check_cast(readable: Readable, cast: Cast) -> None:
    dtype = readable.numpy_dtype
    if cast and (dtype.itemsize > 2 or dtype.kind in "iubc"):
        raise InputError(
            f"parameter {readable.name!r} is {readable.dtype}: only floats of 16 or 8 bits are cast to {cast}, which "
            f"has each of their values: leave out {option('cast', [cast])}"
        )


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The beginning of a file of numpy's format, up to the first element."""
    fields: Mapping[str, Any] = {"descr": _descr(dtype), "fortran_order": False, "shape": shape}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, dict(fields))
    return header.getvalue()


def _descr(dtype: np.dtype[Any]) -> str:
    return f"|V{dtype.itemsize}" if _is_of_ml_dtypes(dtype) else dtype.str


def _is_of_ml_dtypes(dtype: np.dtype[Any]) -> bool:
    return dtype.isbuiltin == 2


def _load_text(dtype: np.dtype[Any], name: str) -> str:
    view = f".view(ml_dtypes.{dtype.name})" if _is_of_ml_dtypes(dtype) else ""
    return f"numpy.load({name!r}){view}"
