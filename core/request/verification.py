"""Options of the check of a converted checkpoint."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from reshard.core.request.conversion import VerifyLevel
from reshard.core.request.fields import KeyName, RequiredUrl, StorageName, with_key
from reshard.core.runtime.keys import EncryptionMode


class VerificationRequest(BaseModel):
    """Check a converted checkpoint against the records that were written with it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    target: Annotated[
        RequiredUrl,
        Field(
            title="Checkpoint",
            description="The directory that a conversion made.",
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
        EncryptionMode,
        Field(title="Decryption mode", description="How an encrypted checkpoint is encrypted."),
        with_key("decrypt_key"),
    ] = EncryptionMode.AES_GCM
    storage: StorageName = ""
    source_storage: Annotated[StorageName, Field(title="Source storage")] = ""
    source_decrypt_key: Annotated[KeyName, Field(title="Source decryption key")] = ""
    source_decrypt_mode: Annotated[
        EncryptionMode,
        Field(title="Source decryption mode", description="How an encrypted source is encrypted."),
        with_key("source_decrypt_key"),
    ] = EncryptionMode.AES_GCM
