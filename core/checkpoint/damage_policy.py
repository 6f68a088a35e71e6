"""How a catalog treats ranks without a usable file.

The content of a file is what makes it damaged: the file is missing, ends too early or fails its CRC. A file that cannot
be read, for lack of permission, is not damaged: its content is still there.
"""

from collections.abc import Callable, Collection, Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CheckpointError, InputError, StorageError
from reshard.core.files.encryption.cipher_blocks import KeyMistakeError
from reshard.core.runtime.records import Record
from reshard.core.storage.listing import is_missing
from reshard.core.strategy.model import Strategy

NO_FILE = "it has no checkpoint file"
NAMED_AS_FAULTY = "named as faulty"


def nothing_excluded(names: Sequence[str]) -> Collection[str]:
    """Exclude none."""
    return ()


class DamagePolicy(Record):
    """How a catalog treats ranks without a usable file.

    Attributes:
        recovers: they become the catalog's lost ranks; else the checkpoint is refused.
        faulty: ranks whose files are ignored.
        strategy: the checkpoint's strategy, which shows that a readable file has lost entries.
        advice: given a catalog with lost ranks, says whether recovering would succeed, to end a refusal.
        excluded: given all names of a checkpoint, those that are not wanted of it: a file with no others is not needed.
    """

    recovers: bool = False
    faulty: tuple[int, ...] = ()
    strategy: Strategy | None = None
    advice: Callable[[CheckpointCatalog], str] | None = None
    excluded: Callable[[Sequence[str]], Collection[str]] = nothing_excluded


def is_damage(error: InputError) -> bool:
    """True if a file is missing, or its content makes it unusable."""
    cause = error.__cause__
    if isinstance(error, KeyMistakeError):
        return False
    return isinstance(error, CheckpointError) or (isinstance(cause, StorageError) and is_missing(cause))


def with_advice(error: InputError, advice: str) -> InputError:
    """The same error with a sentence more."""
    return type(error)(f"{error.marked}\n{advice}") if advice else error
