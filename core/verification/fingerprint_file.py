"""The fingerprints of a model's parameters as a document: written on one machine, compared on another."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

import xxhash
from pydantic import Field, ValidationError

from reshard.core.changes.rules import Several
from reshard.core.errors import CheckpointError, InputError, StorageError
from reshard.core.layouts.any_layout import is_document
from reshard.core.layouts.state_numbers import Number
from reshard.core.reports.blocks import Block, Line, Listing
from reshard.core.reports.report import Report
from reshard.core.runtime.metadata import parsing, records_bytes
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, size_text
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_ckpt
from reshard.core.tensor.fingerprint import TEXT_PATTERN
from reshard.core.text.printing import printable

_MAX_BYTES = 256 << 20


Digits = Annotated[str, Field(pattern=TEXT_PATTERN)]


class ParameterFingerprint(Summary):
    """The fingerprint of one parameter.

    Attributes:
        name: the parameter's name.
        dtype: name of its element type.
        shape: shape of the whole tensor; for a text or a map tensor, its bytes.
        fingerprint: fingerprint of its contents, 16 hex digits.
        others: further fingerprints, if no strategy knows the parameter and ranks hold different contents.
    """

    name: str
    dtype: str
    shape: Several[int]
    fingerprint: Digits
    others: Several[Digits] = ()


class ModelFingerprint(Report):
    """The fingerprints of a checkpoint.

    Attributes:
        kind: the kind and version of the document.
        checkpoint: URL of the checkpoint.
        step: the step read, if file names carry one.
        ranks: the number of its ranks; of files, if it is unified.
        stages: the number of its pipeline stages.
        unified: True if it is unified.
        size_bytes: bytes of all whole tensors.
        fingerprint: fingerprint of all parameters together (names, dtypes, shapes, contents, ordered by name), 32 hex
            digits.
        parameters: the parameters, ordered by name.
        differing: replicas that differ, in sentences; the checkpoint is then not a single model.
        notes: what was chosen, in sentences.
        common: numbers of the training's state beside the tensors, by name.
    """

    kind: Literal["reshard-fingerprint-1"] = "reshard-fingerprint-1"
    checkpoint: str
    step: str | None
    ranks: int
    stages: Annotated[int, Field(ge=1)] = 1
    unified: bool = False
    size_bytes: int
    fingerprint: str
    parameters: Several[ParameterFingerprint]
    differing: Several[str] = ()
    notes: Several[str] = ()
    common: Mapping[str, Number] = {}

    def blocks(self) -> Iterator[Block]:
        """Yield its content: lines with fixed columns, so that `diff` shows only those that differ."""
        size = f"{counted(len(self.parameters), 'parameter')}, {size_text(self.size_bytes)}"
        yield Line(f"{self.fingerprint}  the whole model: {size}")
        yield Listing(
            ("fingerprint", "dtype", "parameter", "shape"),
            [
                (",".join([each.fingerprint, *each.others]), each.dtype, printable(each.name), str(list(each.shape)))
                for each in self.parameters
            ],
            form="{}  {:<9}  {:<32}  {}",
        )


def fingerprint_of_all(parameters: Iterable[ParameterFingerprint]) -> str:
    """The fingerprint of all parameters together; they are ordered by name."""
    digest = xxhash.xxh3_128()
    for each in parameters:
        shape = ",".join(map(str, each.shape))
        fields = "\0".join([each.name, each.dtype, shape, each.fingerprint, *each.others])
        digest.update(f"{fields}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def names_fingerprints(url: str) -> bool:
    """True if a URL may name such a document: a JSON file, and neither an index nor metadata."""
    return url.endswith(".json") and not is_document(url.rpartition("/")[2]) and "{" not in url


def read_model_fingerprint(url: str) -> ModelFingerprint:
    """Read the document at a URL."""
    location = parse_url(url)
    try:
        data = read_small_file(location, _MAX_BYTES)
        with parsing(location) as parse:
            parse.take(records_bytes(data, ParameterFingerprint.model_fields))
            document = ModelFingerprint.model_validate_json(data)
    except StorageError as error:
        if error.transient:
            raise
        raise InputError(error.marked) from error
    except (ValidationError, CheckpointError):
        raise InputError(
            f"{location}: is neither a checkpoint nor a JSON document of 'reshard fingerprint': name the "
            "checkpoint's directory, a pattern with {rank}, or its file"
        ) from None
    try:
        for each in document.parameters:
            dtype_from_ckpt(each.dtype)
    except CheckpointError as error:
        raise InputError(f"{location}: {error}") from None
    if fingerprint_of_all(document.parameters) != document.fingerprint:
        raise InputError(f"{location}: was changed: its parameters do not give its fingerprint {document.fingerprint}")
    return document
