"""The documents beside a target's files, such as an index: their names, kinds and contents."""

import hashlib
from functools import cached_property

import xxhash

from reshard.core.checkpoint.manifest import IndexSummary
from reshard.core.runtime.records import Record


class DocumentKind(Record):
    """What a file beside those of tensors is, in a word for messages, and the limit of its size."""

    title: str
    max_bytes: int


class Document(Record, dict=True):
    """A document's file name, relative to the target, and its content."""

    name: str
    data: bytes

    @cached_property
    def summary(self) -> IndexSummary:
        """The document's entry in the manifest."""
        return IndexSummary(file=self.name, size_bytes=len(self.data), digest=xxhash.xxh3_128_hexdigest(self.data))

    @cached_property
    def summary_with_sha256(self) -> IndexSummary:
        """The same with the SHA-256."""
        return self.summary.model_copy(update={"sha256": hashlib.sha256(self.data).hexdigest()})


class Documents(Record):
    """The documents that a target has beside its files.

    Attributes:
        index: which tensor is in which file; None for a single file.
        common: the state of the training; None if the layout has no place for it.
        others: what else loaders need.
    """

    index: Document | None = None
    common: Document | None = None
    others: tuple[Document, ...] = ()

    @property
    def each(self) -> tuple[Document, ...]:
        """The documents that there are, in the order in which they are written."""
        return (*(document for document in (self.index, self.common) if document is not None), *self.others)


NO_DOCUMENTS = Documents()
