"""Options of reading a checkpoint: as a conversion's source, or as one side of a comparison."""

from typing import Annotated, Self

from pydantic import Field

from reshard.core.request.changes import Selection
from reshard.core.request.conversion import ConversionOptions, IntegratedSave, core_count
from reshard.core.request.fields import (
    KeyName,
    MemoryLimit,
    Patterns,
    Ranks,
    RequiredUrl,
    Step,
    StorageName,
    Url,
    parse_ranks,
    parse_size,
    with_key,
)
from reshard.core.request.validation import RequestModel
from reshard.core.runtime.keys import EncryptionMode


class SourceRequest(RequestModel):
    """Open a checkpoint: which one, by which strategy, with which checks. Fields mean the same as a conversion's."""

    source: RequiredUrl
    source_strategy: Url = ""
    source_storage: StorageName = ""
    source_prefix: str = ""
    workers: int = Field(default=0, ge=0, le=1024)
    memory_limit: MemoryLimit = "2GiB"
    check_crc: bool = True
    allow_missing: list[str] = Field(default=[])
    decrypt_key: KeyName = ""
    decrypt_mode: Annotated[EncryptionMode, with_key("decrypt_key")] = EncryptionMode.AES_GCM
    integrated_save: IntegratedSave = IntegratedSave.AUTO
    trust_strategy: bool = False
    check_replicas: bool = False
    step: Step = ""
    recover: bool = False
    fault_ranks: Ranks = ""

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

    @property
    def memory_limit_bytes(self) -> int:
        """The memory limit in bytes."""
        return parse_size(self.memory_limit)

    @property
    def worker_count(self) -> int:
        """Files read at once."""
        return self.workers or core_count()


class FingerprintRequest(SourceRequest):
    """Fingerprint a checkpoint: which one, and which of its parameters."""

    check_crc: bool = False
    select: Selection = Selection.ALL
    include: Patterns = Field(default=[])
    exclude: Patterns = Field(default=[])
