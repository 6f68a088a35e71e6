"""What is to happen where ranks of a checkpoint have no usable file. What a strategy tells of it is given as functions.

Damage is what a file's content shows: it is not there, ends too early, fails its CRC. That a file cannot be read, for
want of permission say, is no damage: what it holds is there.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from reshard.core.checkpoint.catalog.records import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.encryption.cipher_blocks import KeyMistakeError
from reshard.core.errors import CheckpointError, InputError, StorageError
from reshard.core.storage.listing import is_missing

NO_FILE = "it has no checkpoint file"
NAMED_AS_FAULTY = "named as faulty"


def _gives_nothing(_: int) -> Collection[str]:
    return ()


def _none_is_torn(_: Mapping[int, CatalogRecord]) -> Mapping[int, str]:
    return {}


def _no_advice(_: CheckpointCatalog) -> str:
    return ""


@dataclass(frozen=True)
class DamagePolicy:
    """What is to happen where ranks have no usable file.

    Attributes:
        recovers: such ranks become the catalog's lost ones; else the checkpoint is refused.
        faulty: ranks whose files are not to be looked at.
        given_to: the names that the strategy gives a rank.
        torn: of the ranks whose files can be read those that lost some of their entries all the same, and why.
        advice: a sentence for the end of a refusal: whether recovering would do for a catalog with lost ranks.
    """

    recovers: bool = False
    faulty: tuple[int, ...] = ()
    given_to: Callable[[int], Collection[str]] = _gives_nothing
    torn: Callable[[Mapping[int, CatalogRecord]], Mapping[int, str]] = _none_is_torn
    advice: Callable[[CheckpointCatalog], str] = _no_advice


def is_damage(error: InputError) -> bool:
    """Whether it is the content of a file that makes it unusable, or that it is not there."""
    cause = error.__cause__
    if isinstance(error, KeyMistakeError):
        return False
    return isinstance(error, CheckpointError) or (isinstance(cause, StorageError) and is_missing(cause))


def with_advice(error: InputError, advice: str) -> InputError:
    """The same error, its message ending with a sentence more."""
    return type(error)(f"{error}\n{advice}") if advice else error
