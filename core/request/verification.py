"""Options of the check of a converted checkpoint."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from reshard.core.request.conversion import (
    WITHOUT_CREDENTIALS,
    KeyName,
    StorageName,
    VerifyLevel,
    mode_with_key,
    without_credentials,
)
from reshard.core.runtime.keys import EncryptionMode


class VerificationRequest(BaseModel):
    """Check a converted checkpoint against the records that were written with it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    target: Annotated[
        str,
        AfterValidator(without_credentials),
        Field(
            title="Checkpoint",
            min_length=1,
            description="The directory that a conversion made.",
            json_schema_extra=WITHOUT_CREDENTIALS,
        ),
    ]
    level: Annotated[
        Literal[VerifyLevel.STRUCTURE, VerifyLevel.CHECKSUM, VerifyLevel.CONTENT],
        Field(
            title="Verification",
            description="structure: files, names, dtypes and shapes. checksum: also every byte, against digests taken "
            "while writing, and the CRC of files that have one. content: also every value, against the source's, which "
            "has to be where it was.",
        ),
    ] = VerifyLevel.CHECKSUM
    decrypt_key: KeyName = ""
    decrypt_mode: Annotated[
        EncryptionMode, Field(title="Decryption mode", description="How an encrypted checkpoint is encrypted.")
    ] = EncryptionMode.AES_GCM
    storage: StorageName = ""
    source_storage: Annotated[StorageName, Field(title="Source storage")] = ""
    source_decrypt_key: Annotated[KeyName, Field(title="Source decryption key")] = ""
    source_decrypt_mode: Annotated[
        EncryptionMode, Field(title="Source decryption mode", description="How an encrypted source is encrypted.")
    ] = EncryptionMode.AES_GCM

    @field_validator("decrypt_mode")
    @classmethod
    def _check_mode(cls, value: EncryptionMode, info: ValidationInfo) -> EncryptionMode:
        return mode_with_key(value, info.data.get("decrypt_key"), "--decrypt-key")

    @field_validator("source_decrypt_mode")
    @classmethod
    def _check_source_mode(cls, value: EncryptionMode, info: ValidationInfo) -> EncryptionMode:
        return mode_with_key(value, info.data.get("source_decrypt_key"), "--source-decrypt-key")
