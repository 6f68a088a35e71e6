"""The errors that reshard raises on purpose, and which of them are transient.

    ReshardError                    one clear message: what is wrong, where, what to do
    ├── InputError                  the input is wrong; nothing was written           exit code 2
    │   ├── StrategyError           a strategy file, or a set of them
    │   ├── LayoutError             a layout that does not fit its tensor or its devices
    │   ├── CheckpointError         a checkpoint file: damaged, of an unknown kind or dtype
    │   ├── CatalogError            a checkpoint: ranks missing, steps mixed, ranks that disagree
    │   ├── PlanError               source, target and options do not fit together
    │   ├── SignatureError          a signature: damaged, of an unknown kind, or not by who is trusted
    │   ├── CastError               values that the requested dtype cannot hold
    │   ├── LimitError              metadata that would take more memory than its limit
    │   ├── UnknownNameError        a name that a checkpoint does not have: a KeyError as well
    │   ├── IndexingError           an index that a tensor does not have: an IndexError as well
    │   └── TargetError             the target is occupied
    │       └── TargetBusyError     another run is working on it at this moment
    ├── VerificationError           the written files are not what the plan says      exit code 1
    │   └── DifferenceError         two checkpoints are not the same model
    └── ConversionError             runtime failure (I/O after retries, disk full)    exit code 3
        ├── StoppedError            stopped from outside: its run was cancelled
        ├── OutOfMemoryError        the system refused the process more memory
        └── StorageError            reading or writing a URL failed; `transient` says if a retry may help
            └── UnusableStorageError    no such bucket, no credentials: an InputError as well, exit code 2

Transient errors come from a busy network or server: timeouts, resets, "try again". Missing permissions, missing files,
full disks and damaged contents are permanent, and are not retried. All that reads or writes a URL may raise a
StorageError: docstrings name it where it says more than that.
"""

import errno
from collections.abc import Sequence

from reshard.core.text.options import KEY, Option, options_in, received, spelled
from reshard.core.text.printing import listed_lines, printable_lines
from reshard.core.text.secrets import scrubbed

_TRANSIENT_ERRNOS = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,  # s3fs reports 503 SlowDown as EBUSY
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.EINTR,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.EREMOTEIO,  # s3fs reports 500 InternalError as that
        errno.ESTALE,  # a network file system lost its handle
        errno.ETIMEDOUT,
    }
)


class ReshardError(Exception):
    """Base of all errors whose message is meant for the user.

    Its `str()` is safe to print and log, whatever foreign names or server answers it contains, and spells the options
    that its message marks (`reshard.core.text.options`) for its reader.
    """

    @property
    def marked(self) -> str:
        """The message with marks in place of options, for another error's message."""
        return Exception.__str__(self)  # that of KeyError adds quotes

    @property
    def options(self) -> tuple[Option, ...]:
        """The options that the message names: those that are wrong, or would help."""
        return options_in(self.marked)

    @property
    def args(self) -> tuple[object, ...]:  # type: ignore[override]  # an error's arguments do not change
        """Its message as `str()` gives it, and what else it was made of."""
        return (str(self), *super().args[1:])

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (type(self), super().args, KEY), self.__dict__

    def __str__(self) -> str:
        return printable_lines(scrubbed(spelled(self.marked)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class InputError(ReshardError):
    """The input is wrong: retrying cannot help, changing the input can."""


class StrategyError(InputError):
    """A strategy file, or a set of them, cannot be used."""


class LayoutError(InputError):
    """A layout does not fit its tensor or its devices."""


class CheckpointError(InputError):
    """A checkpoint file is damaged, of an unknown kind, or has unsupported content."""


class CatalogError(InputError):
    """The files do not form one complete, consistent checkpoint."""


class PlanError(InputError):
    """Source, target and options do not fit together."""


class SignatureError(InputError):
    """A signature is damaged, of an unsupported kind, or not by anybody who is trusted."""


class CastError(InputError):
    """The requested dtype cannot hold a parameter's values."""


class LimitError(InputError):
    """Parsing metadata would exceed the memory limit."""


class UnknownNameError(InputError, KeyError):
    """A checkpoint that is open has no tensor of that name."""


class IndexingError(InputError, IndexError):
    """An index is out of a tensor's bounds, or of a kind that cannot be read by."""


class TargetError(InputError):
    """The target is occupied, or in use by another run."""


class TargetBusyError(TargetError):
    """Another run is working on the target at this moment."""


class VerificationError(ReshardError):
    """The written files are not what the plan says."""


class DifferenceError(VerificationError):
    """Two checkpoints that should be the same model differ."""


class ConversionError(ReshardError):
    """The conversion failed although its input was right."""


class StoppedError(ConversionError):
    """Work was stopped from outside: its run was cancelled, or failed elsewhere."""


class OutOfMemoryError(ConversionError):
    """The system refused the process more memory."""


class StorageError(ConversionError):
    """Reading or writing a URL failed.

    `transient`: the same operation may succeed later.
    """

    def __init__(self, message: str, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class UnusableStorageError(StorageError, InputError):
    """A storage cannot serve any request as named: no such bucket, or no credentials."""


def text_with_notes(error: BaseException) -> str:
    """Return an error's message and its notes, each below it; safe to print, as the message is."""
    return "\n".join([str(error), *notes_of(error)])


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of an error, such as what it left behind; safe to print."""
    return [printable_lines(scrubbed(note)) for note in getattr(error, "__notes__", ())]


def _received(kind: type[ReshardError], arguments: tuple[object, ...], key: str) -> ReshardError:
    """Return the error that a process with this key has pickled."""
    return kind(*(received(each, key) if isinstance(each, str) else each for each in arguments))


def is_transient(error: BaseException) -> bool:
    """True if the same operation may succeed when repeated."""
    if isinstance(error, StorageError):
        return error.transient
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    return isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS


def raise_problems(kind: type[ReshardError], headline: str, problems: Sequence[str]) -> None:
    """Raise one error that lists all problems below a headline, if there are any."""
    if problems:
        raise kind("\n  - ".join([headline, *listed_lines(problems)]))
