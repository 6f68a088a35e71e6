"""An adapter as a plan has it: its files, and what it does to which tensors of the source."""

from collections.abc import Iterator, Mapping, Sequence

from reshard.core.changes.lora.deltas import Delta
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import PlanError
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed, quoted, size_text
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.segments import Piece
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

_MAX_LISTED = 4
_BESIDE_MATRICES_BYTES = 24 * 2**20
_MIN_BESIDE_ADAPTER_BYTES = 2**20
_HEAD, _EMBEDDINGS = "lm_head.weight", ("embed_tokens.weight", "wte.weight")


class PlacedDelta(Record):
    """What becomes of a part of a source parameter.

    Attributes:
        piece: the part, and its place in the tensor that the adapter is for.
        delta: what becomes of that tensor.
    """

    piece: Piece
    delta: Delta


class AdaptedSource(Record):
    """A source parameter of which tensors that an adapter is for are made.

    Attributes:
        shape: its shape.
        parts: what becomes of which parts; the others keep their values.
    """

    shape: Shape
    parts: tuple[PlacedDelta, ...]


class Adapter(Record):
    """A LoRA adapter that is merged into the source's weights.

    Attributes:
        catalog: its files; where it is in the files of its base, those of the source.
        strategy: how its tensors are cut; None: not at all.
        deltas: name of a tensor -> what becomes of it; the source's names, unless there are `placed`.
        in_source: its tensors are among the source's.
        matrix_bytes: memory for the matrices of a parameter, as float32.
        placed: where the names are those that a preset makes: name of a source parameter -> what becomes of its parts.
        whose: whose names these are, if they are not the source's.
        trained_with: the model that it was trained with, as its configuration calls it; empty if it does not say.
    """

    catalog: CheckpointCatalog
    strategy: Strategy | None
    deltas: Mapping[str, Delta]
    in_source: bool = False
    matrix_bytes: int = 0
    placed: Mapping[str, AdaptedSource] = {}
    whose: str = ""
    trained_with: str = ""

    def shape_of(self, name: str) -> Shape | None:
        """Return the shape that a source parameter has to have; None if nothing is merged into it."""
        if self.placed:
            return self.placed[name].shape if name in self.placed else None
        return self.deltas[name].shape if name in self.deltas else None

    @property
    def url(self) -> str:
        """The adapter, as it was named."""
        return self.catalog.url

    @property
    def worker_bytes(self) -> int:
        """Memory that a worker needs beside its buffers: for matrices, for reading them, and for what it makes."""
        return self.matrix_bytes + _BESIDE_MATRICES_BYTES

    @property
    def note(self) -> str:
        """What is done, in a sentence."""
        where = "its adapters" if self.in_source else f"the adapter {self.url}"
        whose = f" by {self.whose} names" if self.whose else ""
        merged = f"{where} merged into {counted(len(self.deltas), 'parameter')}{whose}; training state is left out"
        # names and shapes do not show it
        return (
            f"{merged}; by its configuration it was trained with {quoted(self.trained_with)}"
            if self.trained_with
            else merged
        )

    def problems(self, names: Sequence[str]) -> Iterator[str]:
        """What keeps it from being merged into parameters of these names."""
        if self.placed:
            return
        known = frozenset(names)
        lacking = [repr(name) for name in self.deltas if name not in known]
        if lacking:
            yield (
                f"{option('lora', self.url)}: changes {counted(len(lacking), 'parameter')} that the source lacks: "
                f"{listed(lacking, _MAX_LISTED)}; the source has {listed(list(map(repr, names)), 2)}. The adapter is "
                "of another model, or the source has other names than the model that it was trained with: convert the "
                "source to those names first"
            )
        own = [repr(name) for delta in self.deltas.values() for name in delta.names if name in known]
        if own and not self.in_source:
            yield (
                f"{option('lora', self.url)}: the source's files have matrices of these names themselves "
                f"({listed(own, _MAX_LISTED)}): name the source itself as its adapter, or a source without them"
            )
        if _HEAD not in known and not lacking:
            for name in self.deltas:
                if name.endswith(_EMBEDDINGS):
                    yield (
                        f"{option('lora', self.url)}: changes {name!r}, and the source has no {_HEAD!r}: if the "
                        "model's head is its embedding, reshard cannot tell what becomes of the head. Add the head to "
                        "the source, or merge with peft"
                    )


def beside_adapter(adapter: Adapter, workers: int, limit_bytes: int) -> tuple[int, int]:
    """Return how many workers have memory for an adapter's matrices, and what is left for their buffers.

    Raises:
        PlanError: it is too little.
    """
    workers = max(1, min(workers, limit_bytes // (2 * adapter.worker_bytes)))
    left_bytes = limit_bytes - workers * adapter.worker_bytes
    if left_bytes < _MIN_BESIDE_ADAPTER_BYTES:
        needed = size_text(adapter.worker_bytes + _MIN_BESIDE_ADAPTER_BYTES)
        raise PlanError(
            f"{option('memory_limit', size_text(limit_bytes))}: merging {adapter.url} takes {needed} at least"
        )
    return workers, left_bytes
