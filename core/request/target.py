"""Options of a conversion's target, in parts: its place, its layout, its files and what is checked of them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.layouts.all_options import LAYOUT_OPTIONS
from reshard.core.layouts.options import described, with_options_of
from reshard.core.layouts.registry import TargetLayout
from reshard.core.options.fields import (
    TARGET_KEY_DESCRIPTION,
    KeyName,
    Metavar,
    RequiredUrl,
    SigningKeyName,
    StorageName,
    Url,
    with_key,
)
from reshard.core.options.validation import RequestModel
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.text.options import option, spelled


class OutputFormat(StrEnum):
    """Kind of the target's files."""

    SAME = "same"
    CKPT = "ckpt"
    SAFETENSORS = "safetensors"


class Sha256Level(StrEnum):
    """Which files' SHA-256 is recorded."""

    NONE = "none"
    TARGET = "target"
    SOURCE = "source"


class TargetPlace(RequestModel):
    """Where the target is, and how it is sharded."""

    target: RequiredUrl = Field(
        description="The directory to create, with rank_0, rank_1, … in it; it appears only when it is complete."
    )
    target_strategy: Url = Field(
        default="",
        description="How to shard the target: a strategy file, or a directory of them. Empty: one rank with whole "
        "tensors.",
    )
    target_storage: StorageName = Field(
        default="", description="Reference to credentials for the target and its strategy, in the same forms."
    )


@with_options_of(LAYOUT_OPTIONS)
class TargetLayoutOptions(RequestModel):
    """How the target lies in its directory, with the options that only one layout knows."""

    format: OutputFormat = Field(
        default=OutputFormat.SAME, description="Format of the target's files; same: the source's format."
    )
    layout: TargetLayout = Field(default=TargetLayout.RANKS, description=described(LAYOUT_OPTIONS))


class TargetSignature(RequestModel):
    """Who signs the target."""

    sign: SigningKeyName = Field(
        default="",
        title="Signing key",
        description="Sign the target: reference to an elliptic curve key in PEM (P-256, P-384, P-521), env:NAME, "
        "file:PATH or block:NAME. model.sig is written beside the files and covers each with its SHA-256; 'reshard "
        "verify' and model_signing check it. Empty: no signature.",
    )
    sign_passphrase: SigningKeyName = Field(
        default="",
        title="Passphrase",
        description="Reference to the passphrase of an encrypted signing key, in the same forms.",
    )
    sign_certificate: Url = Field(
        default="",
        title="Certificate",
        description="Certificates of the signing key, a PEM file with the key's own first, for those who trust a CA "
        "rather than the key. Empty: the signature names the key alone.",
    )

    @field_validator("sign_passphrase", "sign_certificate")
    @classmethod
    def _check_signs(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("sign") == "":
            raise ValueError(spelled(f"needs a key: name it with {option('sign')}"))
        return value


class TargetFiles(TargetSignature):
    """How the target's files are written and checked."""

    verify: VerifyLevel = Field(
        default=VerifyLevel.CHECKSUM,
        title="Verification",
        description="structure: names, dtypes and shapes. checksum: also every byte, read back from the target. "
        "content: also every value of every copy, compared with the source. none: no check.",
    )
    sha256: Sha256Level = Field(
        default=Sha256Level.NONE,
        title="SHA-256",
        description="target: record the SHA-256 of every file of the target, taken while it is written; a signature "
        "and other programs (sha256sum) need it. source: also that of every source file, each of which is read whole "
        "for it. none: neither.",
    )
    encrypt_key: KeyName = Field(default="", title="Encryption key", description=TARGET_KEY_DESCRIPTION)
    encrypt_mode: Annotated[EncryptionMode, with_key("encrypt_key")] = Field(
        default=EncryptionMode.AES_GCM, title="Encryption mode", description="How the target is encrypted."
    )
    write_crc: bool = Field(
        default=False,
        title="Write CRC",
        description="Add a CRC to the target's files, which MindSpore checks with crc_check. For .safetensors files, "
        "the source is read twice.",
    )
    remove_redundancy: bool = Field(
        default=False,
        description="Write each slice that several target ranks share on only one of them (see 'replicas'); MindSpore "
        "loads such a checkpoint with remove_redundancy=True.",
    )
    replicas: Annotated[int, Metavar("N")] = Field(
        default=1, ge=1, description="Number of copies of each slice to keep when redundancy is removed."
    )

    @property
    def hashes_target(self) -> bool:
        """True if the SHA-256 of the target's files is taken."""
        return self.sha256 is not Sha256Level.NONE or bool(self.sign)

    @property
    def hashes_source(self) -> bool:
        """True if the SHA-256 of the source's checkpoint files is taken as well."""
        return self.sha256 is Sha256Level.SOURCE

    @field_validator("encrypt_key")
    @classmethod
    def _check_encrypted_format(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("format") is OutputFormat.SAFETENSORS:
            raise ValueError(
                "MindSpore cannot encrypt .safetensors files: choose the format ckpt, or leave the key out"
            )
        return value

    @field_validator("write_crc")
    @classmethod
    def _check_no_crc_of_encrypted(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("encrypt_key"):
            raise ValueError("an encrypted file has no CRC (MindSpore): choose one of the two")
        return value

    @field_validator("replicas")
    @classmethod
    def _check_replicas(cls, value: int, info: ValidationInfo) -> int:
        if value > 1 and not info.data.get("remove_redundancy", True):
            raise ValueError(spelled(f"only valid with {option('remove_redundancy', True)}"))
        return value
