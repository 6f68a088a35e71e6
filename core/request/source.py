"""Options of reading a checkpoint: as a conversion's source, or as one side of a comparison."""

from typing import Self

from pydantic import Field

from reshard.core.changes.changes import Selection
from reshard.core.options.fields import Patterns, parse_ranks
from reshard.core.request.conversion import ConversionOptions
from reshard.core.request.reading import FileChoice, SourceOptions
from reshard.core.strategy.integrated_save import IntegratedSave

DIAGNOSIS_OPTIONS = (
    *("step", "source_prefix", "root", "integrated_save"),
    *("source_storage", "decrypt_key", "decrypt_mode"),
)
"""Options of `doctor`, which checks a strategy against a source."""
RECOVERY_OPTIONS = (
    *("source_strategy", "source_storage", "integrated_save", "trust_strategy", "step", "source_prefix", "workers"),
    *("check_crc", "allow_missing", "decrypt_key", "decrypt_mode", "fault_ranks"),
)
"""Options of `recover`, which assesses a damaged source."""
FINGERPRINT_OPTIONS = (
    *("source_strategy", "integrated_save", "trust_strategy", "step", "source_prefix", "root"),
    *("select", "include", "exclude"),
    *("decrypt_key", "decrypt_mode", "source_storage", "workers", "memory_limit", "bandwidth_limit"),
)
"""Options of `fingerprint`, in the order of the command's help."""


class SourceRequest(FileChoice, SourceOptions):
    """Open a checkpoint: which one, by which strategy, with which checks."""

    @classmethod
    def of(cls, request: ConversionOptions) -> Self:
        """Return the options of a conversion that are about its source."""
        given = request.model_dump(include=set(cls.model_fields))
        return cls.model_validate(given)

    @property
    def assumed_integrated_save(self) -> IntegratedSave:
        """`integrated_save`, or NO for a source read by its own records: reshard writes slices."""
        is_own = not self.source_strategy and self.integrated_save is IntegratedSave.AUTO
        return IntegratedSave.NO if is_own else self.integrated_save

    @property
    def faulty(self) -> tuple[int, ...]:
        """Ranks whose files to ignore."""
        return parse_ranks(self.fault_ranks) if self.recover else ()


class FingerprintRequest(SourceRequest):
    """Fingerprint a checkpoint: which one, and which of its parameters."""

    check_crc: bool = False
    select: Selection = Selection.ALL
    include: Patterns = Field(default=[])
    exclude: Patterns = Field(default=[])
