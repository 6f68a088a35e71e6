"""What a layout answers about a source: is it there, what is in it, which of its steps are complete.

A layout recognizes a place by its listing, and answers with a found checkpoint, which knows its files, whether its own
metadata says how it is sharded, how it is cataloged and described, and which common options make no sense for it. All
other code asks these two, and names no layout.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from msgspec import field

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.damage_policy import DamagePolicy
from reshard.core.checkpoint.record_reader import WantsDigest, no_digest
from reshard.core.errors import CatalogError
from reshard.core.files.file_names import Step
from reshard.core.layouts.model_files import ModelFiles
from reshard.core.layouts.place import FoundFile, Place
from reshard.core.layouts.seen_steps import TrainingSteps
from reshard.core.layouts.state_numbers import Number
from reshard.core.layouts.tracker import Tracker, read_tracker
from reshard.core.runtime.records import Record
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import source_option

Document = dict[str, Any]
"""A description, as JSON shows it."""

_REFUSES_DAMAGE = DamagePolicy()


class CatalogOptions(Record):
    """How a checkpoint is cataloged.

    Attributes:
        ranks: ranks of the source strategy; None without a strategy: rank 0 holds everything.
        step: the step to use, `10_5` or `10_5_breakpoint`; None for the newest one that every rank has.
        source_prefix: the prefix of the files to use, if there are several.
        root: keys, joined by dots, that lead to the dict of tensors in files that have trees.
        digest: selects the parameters of each rank whose contents are digested; by default none.
        check_crc: read files that carry a CRC whole to check it.
        crc_later: CRCs of single tensors, where files have them, are not checked here; the indexes have them for later.
        workers: files read at a time; more if they are remote.
        allow_extra_ranks: ignore ranks other than `ranks`.
        damage: how to treat ranks without a usable file. If it recovers, they become the catalog's lost ranks, and
            without `step` the newest step is used that is on all ranks with files, leaving aside faulty ones.
        about_ranks: names of given options that say how ranks were saved.
    """

    ranks: range | None = None
    step: str | None = None
    source_prefix: str | None = None
    root: str = ""
    digest: WantsDigest = no_digest
    check_crc: bool = True
    crc_later: bool = False
    workers: int = 8
    allow_extra_ranks: bool = False
    damage: DamagePolicy = _REFUSES_DAMAGE
    about_ranks: tuple[str, ...] = ()


class SelfEvident(Record):
    """Why a checkpoint needs no strategy, and nothing about it is in doubt once its files agree with its metadata.

    Attributes:
        title: what it is, in a word.
        file_count: how many files it has.
        why: why it needs no strategy.
        superfluous: why a named strategy is wrong, where that is a finding; empty if naming one is refused.
        origin: where such checkpoints come from.
    """

    title: str
    file_count: int
    why: str
    superfluous: str = ""
    origin: str = ""


class ListedParameters(Record):
    """Parameters that the metadata at `origin` lists.

    No file holds those in `unheld`, or files hold them without names; `why` says in the latter case why not.
    """

    origin: str
    names: Sequence[str]
    unheld: Sequence[str]
    why: str = ""


class ModelFacts(Record):
    """What a checkpoint says of the model itself.

    Attributes:
        numbers: by the fields of a Hugging Face config.json.
        row_multiple: what its training pads the rows of a vocabulary to a multiple of; 0: unknown.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    row_multiple: int = 0


class _Remarks(Record, kw_only=True):
    """Fields that are given by name, so that layouts can add others before them."""

    ignored: tuple[str, ...] = ()
    unfinished: bool = False


class FoundCheckpoint(_Remarks, dict=True):
    """A checkpoint that a layout recognized, complete or not; of its files none is opened but indexes and metadata.

    Attributes:
        url: the checkpoint, as it was named.
        files: rank -> its checkpoint files, by name; empty for a rank without any. Where files are not ranks', each
            counts as a rank.
        ignored: other files and folders, as paths below the checkpoint; folders end in a slash.
        unfinished: it is the target of an incomplete conversion.
    """

    url: str
    files: Mapping[int, tuple[FoundFile, ...]]

    title: ClassVar[str] = "checkpoint"
    """What messages call it, without an article."""
    article: ClassVar[str] = "a"
    is_self_described: ClassVar[bool] = True
    """Its own files say how it is sharded: no strategy may be named for it."""
    has_whole_tensors: ClassVar[bool] = False
    """Its tensors are whole, each in one file."""
    has_trees: ClassVar[bool] = False
    """Its tensors are in trees of dicts, one of which an option may choose."""
    may_share_bytes: ClassVar[bool] = False
    """Any of its tensors may be views of the same bytes; where only tied ones are, its catalog names these (`tied`)."""
    preset_settings: ClassVar[Mapping[str, str]] = {}
    """Switches of presets that its layout always sets alike; `names` is the world of its names."""
    no_steps: ClassVar[str] = "is one checkpoint, and has no steps. Name the directory that training saves into"
    """Why it is not the directory of a training, and what to do."""

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks with checkpoint files, ascending."""
        return tuple(sorted(rank for rank, files in self.files.items() if files))

    @property
    def strategy(self) -> Strategy | None:
        """Its sharding, if metadata says it before files are opened."""
        return None

    @property
    def has_records(self) -> bool:
        """True if records of a conversion may be beside its files, with the strategy that it was converted to."""
        return False

    @property
    def strategy_refusal(self) -> str:
        """The refusal of a named strategy, if it is self-described."""
        return f"{self.url}: says itself how it is sharded, so leave out {source_option('source_strategy')}"

    @property
    def self_evident(self) -> SelfEvident | None:
        """Why it needs no strategy; None if samples of its contents have to be looked at, too."""
        return None

    @property
    def model_directory(self) -> Location | None:
        """The Hugging Face directory that belongs to it, with the model's configuration; None without one."""
        return None

    def strategies_beside(self) -> tuple[Location, ...]:
        """Strategies that lie where the programs that save this layout leave them; they are not opened.

        Raises:
            StorageError: a transient failure.
        """
        return ()

    def neighbors(self, strategy: Location) -> Sequence[Location]:
        """Other checkpoints that one of `strategies_beside` may belong to, by where it lies.

        Raises:
            InputError: there may be too many to look for them.
            StorageError: a directory cannot be listed.
        """
        return ()

    def chosen_files(self, options: CatalogOptions) -> Sequence[Location]:
        """The files that `catalog` would open, by their names; only of layouts that have `strategies_beside`.

        Raises:
            CatalogError: no choice of files is right, or several are.
        """
        return ()

    def check_options(self, options: CatalogOptions) -> None:
        """Raise a CatalogError if an option makes no sense for this layout."""
        return

    def check_left_out(self, given: Sequence[str], why: str) -> None:
        """Raise a CatalogError if options were given that make no sense for it; `why`, as a relative clause."""
        if given:
            raise CatalogError(f"{self.url}: is {self.article} {self.title}, {why}: leave out {' and '.join(given)}")

    @abstractmethod
    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Open its files and index them; `options` have been checked.

        Raises:
            CatalogError: files are missing, contradict each other, or several are unusable.
            CheckpointError: one file is unusable.
            StorageError: a transient failure of the storage.
        """
        raise NotImplementedError

    def sharding_of(self, catalog: CheckpointCatalog) -> Strategy | None:
        """How the files of its catalog are sharded; None if that is written elsewhere."""
        return self.strategy

    def as_source(self, catalog: CheckpointCatalog, *, refuses_parts: bool) -> CheckpointCatalog:
        """Complete the catalog of a source with what its surroundings say: other parts of it, its records.

        Raises:
            CatalogError: it is a part of a checkpoint by its name, and the caller `refuses_parts`.
        """
        return catalog

    def model_facts(self, catalog: CheckpointCatalog) -> ModelFacts:
        """What it says of the model itself.

        Raises:
            CatalogError: what says it is damaged.
            StorageError: it cannot be read.
        """
        return ModelFacts()

    def listed_parameters(self, catalog: CheckpointCatalog) -> ListedParameters | None:
        """The parameters that its metadata lists, whether files hold them or not; None if all listed ones are held."""
        return None

    def other_steps(self, source_prefix: str, chosen: Step) -> list[Step]:
        """The steps beside the `chosen` one, itself included, newest first; none if it has no others."""
        return []

    def training_steps(self) -> TrainingSteps:
        """The steps of the training that saves into it; a CatalogError if it is not a training's directory."""
        raise CatalogError(f"{self.url}: {self.no_steps}")

    @abstractmethod
    def describe(self) -> Document:
        """Describe it for `inspect`."""
        raise NotImplementedError


class TrackedSteps(Record):
    """Steps in one directory, of which a file beside them, the tracker, names the one to use.

    Attributes:
        root: the directory.
        directories: number of the step -> its directory's name, ascending.
    """

    root: Location
    directories: Mapping[int, str]
    tracker: Tracker

    def read_tracker(self) -> int | None:
        """Return the number of the step that the tracker names; None without a tracker."""
        return read_tracker(self.root, self.tracker)


class SourceLayout(ABC):
    """One layout, as a source; without answers of its own it has no steps, documents or metadata with strategies."""

    name: ClassVar[str]
    """The layout's name, as the option `layout` has it."""
    is_self_described: ClassVar[bool] = True
    """Its checkpoints say themselves how they are sharded."""

    @abstractmethod
    def recognize(self, place: Place, step: str) -> FoundCheckpoint | None:
        """Return the checkpoint of this layout at a place, and of a training's directory that of a step.

        Args:
            place: where to look.
            step: the step, of several; empty: the layout's choice.

        Raises:
            InputError: it is of this layout, but incomplete or damaged, or has no such step.
            StorageError: the storage does not answer.
        """

    @abstractmethod
    def holds(self, names: Sequence[str]) -> bool:
        """True if a directory with these names has files of this layout, complete or not."""

    def note_beside(self, root: Location, names: Sequence[str]) -> str:
        """Return a note on a checkpoint of this layout that lies beside a model's whole tensors; empty without one.

        Args:
            root: the directory of the tensors.
            names: what else it has.
        """
        return ""

    def model_files(self, place: Place) -> ModelFiles | None:
        """Return the files of weights of a model's directory, complete or not, as loaders of Hugging Face's pick them.

        Returns:
            None if the directory has none of this layout.

        Raises:
            CatalogError: the index is damaged.
            StorageError: the storage does not answer.
        """
        return None

    def number_at(self, place: Place, step: str) -> int | None:
        """Return the number of the step that `recognize` would choose, by names alone; None if steps have none."""
        return None

    def is_document(self, name: str) -> bool:
        """True for the name of an index, of metadata, or of a whole model's file, which may be named themselves."""
        return False

    def whole_of(self, name: str) -> str:
        """Return what to name in place of a file of this name, which alone is only a part; empty for other files."""
        return ""

    def find_steps(self, place: Place) -> TrainingSteps | None:
        """Return the steps in a directory that has a checkpoint of this layout for each; None if it has none."""
        return None

    def step_of(self, name: str) -> Step | None:
        """Return the step in the name of a directory that a conversion of a step is written to; None for others."""
        return None

    def tracked_steps(self, root: Location, names: Sequence[str]) -> TrackedSteps | None:
        """Return the steps in a directory with these names, of a layout with a tracker; None if it has none."""
        return None

    def read_strategy(self, location: Location, names: Sequence[str] | None) -> Strategy | None:
        """Read the strategy in metadata: in a directory with these names, or in a file (None).

        Returns:
            None if there is no metadata of this layout.
        """
        return None

    def numbers_beside(self, catalog: CheckpointCatalog) -> Mapping[str, Number] | None:
        """Return the numbers of the training's state beside the files of a catalog; None if there are none."""
        return None
