"""The fingerprints of a model's parameters as a document: told by one machine, compared on another."""

from collections.abc import Iterable
from typing import Annotated, Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reshard.core.errors import CheckpointError, InputError, StorageError
from reshard.core.request.changes import Several
from reshard.core.runtime.metadata import parsing, records_bytes
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.unified_names import is_index_name
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_record
from reshard.core.tensor.fingerprint import TEXT_PATTERN

_LARGEST_BYTES = 256 << 20


Digits = Annotated[str, Field(pattern=TEXT_PATTERN)]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True)


class ParameterFingerprint(_Document):
    """One parameter.

    Attributes:
        name: its name.
        dtype: name of its element type.
        shape: shape of the whole tensor; of a text and a map tensor, its bytes.
        fingerprint: of its contents, 16 hexadecimal digits.
        others: if no strategy knows it and ranks have different contents, those of the others.
    """

    name: str
    dtype: str
    shape: Several[int]
    fingerprint: Digits
    others: Several[Digits] = ()


class ModelFingerprint(_Document):
    """All of a checkpoint.

    Attributes:
        kind: what this document is.
        checkpoint: URL of the checkpoint.
        step: the step looked at, if the names of its files carry one.
        ranks: how many it has; of a unified one, how many files.
        stages: how many pipeline stages its ranks are in.
        unified: whether it is unified.
        size_bytes: of all whole tensors.
        fingerprint: of all parameters together: names, dtypes, shapes and contents, in the order of the names; 32
            hexadecimal digits.
        parameters: in the order of their names.
        differing: what copies differ although they should be alike, in sentences: then it is no single model.
        notes: what was chosen, in sentences.
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


def fingerprint_of_all(parameters: Iterable[ParameterFingerprint]) -> str:
    """The fingerprint of all parameters together, which are in the order of their names."""
    digest = xxhash.xxh3_128()
    for each in parameters:
        shape = ",".join(map(str, each.shape))
        told = "\0".join([each.name, each.dtype, shape, each.fingerprint, *each.others])
        digest.update(f"{told}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def names_fingerprints(url: str) -> bool:
    """Whether a URL may be that of such a document, by its name, which is not that of an index."""
    return url.endswith(".json") and not is_index_name(url.rpartition("/")[2]) and "{" not in url


def read_model_fingerprint(url: str) -> ModelFingerprint:
    """The document at a URL.

    Raises:
        InputError: it is none, or was changed.
        StorageError: the storage failed in a way that may go away.
    """
    location = parse_url(url)
    try:
        data = read_small_file(location, _LARGEST_BYTES)
        with parsing(location) as parse:
            parse.take(records_bytes(data, ParameterFingerprint.model_fields))
            document = ModelFingerprint.model_validate_json(data)
    except StorageError as error:
        if error.transient:
            raise
        raise InputError(str(error)) from error
    except (ValidationError, CheckpointError):
        raise InputError(
            f"{location}: is no checkpoint, nor what 'reshard fingerprint --json' tells of one: name the checkpoint's "
            "directory, a pattern with {rank}, or its file"
        ) from None
    try:
        for each in document.parameters:
            dtype_from_record(each.dtype)
    except CheckpointError as error:
        raise InputError(f"{location}: {error}") from None
    if fingerprint_of_all(document.parameters) != document.fingerprint:
        raise InputError(f"{location}: was changed: its parameters do not give its fingerprint {document.fingerprint}")
    return document
