"""Checkpoints whose files say the box of each shard in them, as sources: what they answer alike."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.files.file_names import NO_EPOCH, Step
from reshard.core.layouts.placed_shards import ShardFile
from reshard.core.layouts.source_layout import CatalogOptions, FoundCheckpoint, ListedParameters, SelfEvident
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option, source_option


class OpenedShards(Protocol):
    """The files of a checkpoint, after their headers were read."""

    @property
    def files(self) -> Sequence[ShardFile]:
        """What each usable file holds."""

    @property
    def strategy(self) -> Strategy:
        """The boxes of all parameters over the parts of the files."""

    @property
    def names(self) -> Sequence[str]:
        """The names of all parameters and of all states."""

    @property
    def states(self) -> Sequence[str]:
        """The names of the optimizer's states; if they are not known, those that they would have."""

    @property
    def state_problem(self) -> str:
        """Why an optimizer was saved, but is not known by names; empty if it is, or was not saved."""


class FoundShards(FoundCheckpoint):
    """A checkpoint of known shards that was found; its files are opened when its sharding is asked for."""

    evidence: ClassVar[str]
    """Why it needs no strategy."""
    has_replicas: ClassVar[bool] = True
    """Several files may hold the same shards."""

    @property
    @abstractmethod
    def opened(self) -> OpenedShards:
        """Its files, after their headers were read."""

    @property
    @abstractmethod
    def numbers(self) -> Sequence[int]:
        """The steps in its training's directory, ascending; none if it was named itself."""

    @property
    def strategy(self) -> Strategy:
        """Every tensor's boxes over the parts of its files."""
        return self.opened.strategy

    @property
    def strategy_refusal(self) -> str:
        """Its own files are the only right ones."""
        return f"{self._named}, whose files say how it is sharded, so leave out {source_option('source_strategy')}"

    @property
    def self_evident(self) -> SelfEvident:
        """Its files say all."""
        return SelfEvident(self.title, len(self.opened.files), self.evidence)

    def check_options(self, options: CatalogOptions) -> None:
        """Refuse options about ranks, prefixes, and replicas that it does not have."""
        self.check_left_out(options.about_ranks, "which says itself what each file holds, and is never encrypted")
        if options.source_prefix:
            self.check_left_out([option("source_prefix")], "whose files have fixed names")
        if not self.has_replicas and (options.damage.recovers or options.damage.faulty):
            given = option("recover", True) if options.damage.recovers else option("fault_ranks")
            self.check_left_out([given], "which has everything once and so nothing to recover from")
        if options.damage.faulty:
            raise CatalogError(
                f"{self._named}, whose files are not counted as ranks: leave out {option('fault_ranks')}, and move "
                "away what is faulty"
            )

    def listed_parameters(self, catalog: CheckpointCatalog) -> ListedParameters | None:
        """The states of an optimizer that is not known by names."""
        opened = self.opened
        if not opened.state_problem:
            return None
        return ListedParameters(self.url, opened.names, opened.states, opened.state_problem)

    def other_steps(self, source_prefix: str, chosen: Step) -> list[Step]:
        """The steps beside it."""
        return [Step(NO_EPOCH, number) for number in reversed(self.numbers)]

    @property
    def _named(self) -> str:
        return f"{self.url}: is {self.article} {self.title}"
