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
    Url,
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
    provenance: bool = Field(
        default=False,
        title="Provenance",
        description="Check the statements on provenance and values, too: that they agree with the manifest, and, where "
        "the source is still in its place, with its files; reads those whole whose SHA-256 was taken.",
    )
    signed_by: Url = Field(
        default="",
        title="Signed by",
        description="Check model.sig, too: that its signature is by one of these public keys, or by a certificate that "
        "one of these CAs issued, and covers every file as it is. A PEM file, or its name: env:NAME, file:PATH or "
        "block:NAME. Empty: a signature is only mentioned.",
    )
    decrypt_key: KeyName = ""
    decrypt_mode: Annotated[EncryptionMode, with_key("decrypt_key")] = Field(
        default=EncryptionMode.AES_GCM, title="Decryption mode", description="How an encrypted checkpoint is encrypted."
    )
    storage: StorageName = ""
    source_storage: StorageName = Field(
        default="",
        description="Reference to credentials for the source, which the level content and the check of provenance "
        "read, in the same forms.",
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
