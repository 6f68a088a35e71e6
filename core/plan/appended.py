"""Appended entries of target files: epoch and step numbers, flags, texts.

MindSpore's `append_info` and `append_dict`: each is an entry of its own, a number is a 0-d tensor.
"""

import struct
from collections.abc import Collection, Mapping, Sequence

from reshard.core.changes.info_texts import InfoValue
from reshard.core.checkpoint.catalog import CheckpointCatalog, by_index
from reshard.core.files.model import MAX_TEXT_BYTES, TensorEntry, text_entry
from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, DType, dtype_from_name
from reshard.core.tensor.slices import Shape

REDUNDANCY_MARK = "redundancy_removed"
"""Entry of a target's files if some of them would be empty without redundancy, which no reader accepts.

It is about those files: conversions do not pass it through.
"""


class AppendedParameter(Record):
    """An entry for every target file.

    Attributes:
        value: the requested value.
        dtype: MindSpore's element type for a value of Python.
        content: a number's bytes; empty for a text.
        replaces: the source's entry of this name, if any; it is not passed through.
    """

    name: str
    value: InfoValue
    dtype: DType
    content: bytes
    replaces: TensorEntry | None

    @property
    def shape(self) -> Shape:
        """A scalar's shape, or that of a text's bytes."""
        return text_entry(self.name, self.value).shape if isinstance(self.value, str) else ()

    @property
    def text(self) -> str | None:
        """The text; None for a number."""
        return self.value if isinstance(self.value, str) else None


def redundancy_mark() -> AppendedParameter:
    """Return the entry that marks files without redundancy."""
    return AppendedParameter(REDUNDANCY_MARK, True, dtype_from_name("Bool"), b"\1", None)


def appended_parameters(
    info: Sequence[tuple[str, InfoValue]],
    catalog: CheckpointCatalog,
    parameters: Collection[str],
    source_names: Mapping[str, str],
    problems: list[str],
) -> tuple[AppendedParameter, ...]:
    """Build the appended entries; problems with their names or sizes are added to `problems`.

    `parameters` are the names in the strategies, which entries cannot have; `source_names` maps names in the target to
    names in the source.
    """
    return tuple(
        _appended(name, value, _replaced_entry(name, catalog, parameters, source_names, problems), problems)
        for name, value in info
    )


def _replaced_entry(
    name: str,
    catalog: CheckpointCatalog,
    parameters: Collection[str],
    source_names: Mapping[str, str],
    problems: list[str],
) -> TensorEntry | None:
    """The source's entry of the name; a problem if it is more than a number or text."""
    if name == REDUNDANCY_MARK:
        problems.append(f"{name!r} cannot be appended: reshard itself marks files without redundancy so")
        return None
    if name in parameters:
        problems.append(f"{name!r} cannot be appended: a strategy has a parameter of that name")
        return None
    source = source_names.get(name)
    if source is None:
        return None
    owners = [alike[-1] for alike in by_index(catalog.records.values()) if source in alike[0].index.entries]
    for record in owners:
        entry = record.index.entries[source]
        if not _is_information(entry):
            problems.append(
                f"{name!r} cannot be appended: the source has a parameter of that name, {entry.dtype} "
                f"{list(entry.shape)} on rank_{record.rank}, and only single numbers and texts are replaced"
            )
            break
    return next((record.index.entries[source] for record in owners), None)


def _is_information(entry: TensorEntry) -> bool:
    return entry.text is not None or (entry.dtype is not MAP_TENSOR and entry.size_bytes == entry.dtype.itemsize)


def _appended(name: str, value: InfoValue, replaces: TensorEntry | None, problems: list[str]) -> AppendedParameter:
    if isinstance(value, str):
        size_bytes = text_entry(name, value).size_bytes
        if size_bytes > MAX_TEXT_BYTES:
            problems.append(f"{name!r} cannot be appended: a text of {size_bytes} bytes, more than {MAX_TEXT_BYTES}")
        return AppendedParameter(name, value, TEXT, b"", replaces)
    dtype, content = _number(value)
    return AppendedParameter(name, value, dtype_from_name(dtype), content, replaces)


def _number(value: bool | int | float) -> tuple[str, bytes]:
    """A number's dtype and bytes, as `save_checkpoint(append_dict=…)` writes them."""
    if isinstance(value, bool):
        return "Bool", bytes([value])
    if isinstance(value, float):
        return "Float32", struct.pack("<f", value)
    if value < 2**63:
        return "Int64", value.to_bytes(8, "little", signed=True)
    return "UInt64", value.to_bytes(8, "little")
