"""What a user may ask of a checkpoint that is read: a conversion's source, one side of a comparison."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from reshard.core.request.changes import Selection
from reshard.core.request.conversion import (
    ConversionOptions,
    IntegratedSave,
    KeyName,
    StorageName,
    checked_memory_limit,
    checked_patterns,
    core_count,
    epoch_and_step,
    mode_with_key,
    parse_ranks,
    parse_size,
    without_credentials,
)
from reshard.core.runtime.keys import EncryptionMode

_Url = Annotated[str, AfterValidator(without_credentials)]
_Patterns = Annotated[list[str], AfterValidator(checked_patterns)]


class SourceRequest(BaseModel):
    """Open a checkpoint: which one, by which strategy, and what is checked; fields mean what a conversion's do."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    source: Annotated[_Url, Field(min_length=1)]
    source_strategy: _Url = ""
    source_storage: StorageName = ""
    source_prefix: str = ""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    memory_limit: Annotated[str, AfterValidator(checked_memory_limit)] = "2GiB"
    check_crc: bool = True
    allow_missing: list[str] = []
    decrypt_key: KeyName = ""
    decrypt_mode: EncryptionMode = EncryptionMode.AES_GCM
    integrated_save: IntegratedSave = IntegratedSave.AUTO
    trust_strategy: bool = False
    check_replicas: bool = False
    step: Annotated[str, AfterValidator(epoch_and_step)] = ""
    recover: bool = False
    fault_ranks: str = ""

    @field_validator("decrypt_mode")
    @classmethod
    def _check_mode(cls, value: EncryptionMode, info: ValidationInfo) -> EncryptionMode:
        return mode_with_key(value, info.data.get("decrypt_key"), "--decrypt-key")

    @field_validator("fault_ranks")
    @classmethod
    def _check_fault_ranks(cls, value: str) -> str:
        parse_ranks(value)
        return value

    @classmethod
    def of(cls, request: ConversionOptions) -> Self:
        """The part of a conversion's request that is about its source."""
        given = request.model_dump(include=set(cls.model_fields))
        return cls.model_validate(given)

    @property
    def assumed_integrated_save(self) -> IntegratedSave:
        """`integrated_save`, or NO for a source read by its own records: reshard writes slices."""
        is_own = not self.source_strategy and self.integrated_save is IntegratedSave.AUTO
        return IntegratedSave.NO if is_own else self.integrated_save

    @property
    def faulty(self) -> tuple[int, ...]:
        """Ranks whose files are not to be read."""
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
    include: _Patterns = []
    exclude: _Patterns = []
