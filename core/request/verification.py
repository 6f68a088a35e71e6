"""Options of the check of a converted checkpoint."""

from typing import Annotated, Literal

from pydantic import Field

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.options.fields import (
    SOURCE_KEY_DESCRIPTION,
    BandwidthLimit,
    KeyName,
    RequiredUrl,
    StorageName,
    with_key,
)
from reshard.core.options.validation import RequestModel
from reshard.core.runtime.keys import EncryptionMode


class VerificationRequest(RequestModel):
    """Check a converted checkpoint against the records that were written with it."""

    target: RequiredUrl = Field(title="Checkpoint", description="The directory that a conversion made.")
    level: Literal[VerifyLevel.STRUCTURE, VerifyLevel.CHECKSUM, VerifyLevel.CONTENT] = Field(
        default=VerifyLevel.CHECKSUM,
        title="Verification",
        description="structure: files, names, dtypes and shapes. checksum: also every byte, against digests taken "
        "while writing, and the CRC of files that have one. content: also every value, compared with the source, which "
        "must still be in its place.",
    )
    decrypt_key: KeyName = ""
    decrypt_mode: Annotated[EncryptionMode, with_key("decrypt_key")] = Field(
        default=EncryptionMode.AES_GCM, title="Decryption mode", description="How an encrypted checkpoint is encrypted."
    )
    storage: StorageName = ""
    source_storage: StorageName = Field(
        default="",
        description="Reference to credentials for the source, which the level content reads, in the same forms.",
    )
    source_decrypt_key: KeyName = Field(default="", title="Source decryption key", description=SOURCE_KEY_DESCRIPTION)
    source_decrypt_mode: Annotated[EncryptionMode, with_key("source_decrypt_key")] = Field(
        default=EncryptionMode.AES_GCM,
        title="Source decryption mode",
        description="How an encrypted source is encrypted.",
    )
    bandwidth_limit: BandwidthLimit = Field(
        default="", description="Bytes per second that are received from remote storage, like rclone's bwlimit: 10M."
    )
