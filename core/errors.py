"""Every error that reshard raises on purpose, and which of them may go away by themselves.

    ReshardError                    one clear message: what is wrong, where, what to do
    ├── InputError                  the input is wrong; nothing was written               exit code 2
    │   ├── StrategyError           a strategy file, or a set of them
    │   ├── LayoutError             a layout that does not fit its tensor or its devices
    │   ├── CheckpointError         a checkpoint file: damaged, of an unknown kind or dtype
    │   ├── CatalogError            a checkpoint: ranks missing, steps mixed, ranks that disagree
    │   ├── PlanError               source, target and options do not fit together
    │   ├── CastError               values that the dtype which was asked for cannot hold
    │   ├── LimitError              metadata that would take more memory than --memory-limit
    │   └── TargetError             the target is occupied
    │       └── TargetBusyError     another run is working on it at this moment
    ├── VerificationError           what was written is not what was to be written        exit code 1
    │   └── DifferenceError         two checkpoints are not the same model
    └── ConversionError             it failed all the same (I/O after retries, disk full)  exit code 3
        ├── StoppedError            stopped from outside, with its run
        ├── OutOfMemoryError        the system gave the process no more memory
        └── StorageError            reading or writing one URL failed; `transient` says if a retry may help
            └── UnusableStorageError    no such bucket, no credentials: an InputError as well, exit code 2

Transient is what a busy network or server causes: timeouts, resets, "try again". Permission, a missing file, a full
disk and damaged content stay as they are however often one asks, and are not retried.
"""

import errno

from reshard.core.runtime.secrets import scrubbed
from reshard.core.runtime.wording import printable_lines

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
    """Base of all errors that carry a message meant for the user.

    `str()` of it is safe to print and log, whatever foreign names or server answers it contains.
    """

    def __str__(self) -> str:
        return _presentable(super().__str__())


class InputError(ReshardError):
    """The input is wrong: retrying cannot help, changing the input can."""


class StrategyError(InputError):
    """A strategy file, or a set of them, cannot be used."""


class LayoutError(InputError):
    """A layout does not fit its tensor or its devices."""


class CheckpointError(InputError):
    """A checkpoint file is damaged, of an unknown kind, or holds what cannot be handled."""


class CatalogError(InputError):
    """The files do not make one complete, consistent checkpoint."""


class PlanError(InputError):
    """Source, target and options do not fit together."""


class CastError(InputError):
    """The dtype that was asked for cannot hold a parameter's values."""


class LimitError(InputError):
    """Parsing metadata would exceed the memory limit."""


class TargetError(InputError):
    """The target is occupied, or in use by another run."""


class TargetBusyError(TargetError):
    """Another run is working on the target at this moment."""


class VerificationError(ReshardError):
    """What was written is not what was to be written."""


class DifferenceError(VerificationError):
    """Two checkpoints that are to be the same model are not."""


class ConversionError(ReshardError):
    """The conversion failed although its input was right."""


class StoppedError(ConversionError):
    """Work that was stopped from outside: its run is cancelled, or failed elsewhere."""


class OutOfMemoryError(ConversionError):
    """The system gave the process no more memory."""


class StorageError(ConversionError):
    """Reading or writing a URL failed.

    `transient` is True if the same operation may succeed later.
    """

    def __init__(self, message: str, transient: bool = False) -> None:
        super().__init__(message, transient)
        self.message = message
        self.transient = transient

    def __str__(self) -> str:
        return _presentable(self.message)


def _presentable(message: str) -> str:
    return printable_lines(scrubbed(message))


class UnusableStorageError(StorageError, InputError):
    """A storage is unusable as named, for any request: no such bucket, or no credentials."""


def is_transient(error: BaseException) -> bool:
    """Whether the same operation may succeed when repeated."""
    if isinstance(error, StorageError):
        return error.transient
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    return isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS
