"""Options of the signature of a converted checkpoint that is there already."""

from typing import Annotated

from pydantic import Field, field_validator

from reshard.core.options.fields import KeyName, RequiredUrl, SigningKeyName, StorageName, Url, with_key
from reshard.core.options.validation import RequestModel
from reshard.core.runtime.keys import EncryptionMode


class SigningRequest(RequestModel):
    """Sign a converted checkpoint that is there already."""

    target: RequiredUrl = Field(title="Checkpoint", description="The directory that a conversion made.")
    key: SigningKeyName = Field(
        default="",
        validate_default=True,
        title="Signing key",
        description="Reference to an elliptic curve key in PEM (P-256, P-384, P-521): env:NAME, file:PATH or "
        "block:NAME.",
    )
    passphrase: SigningKeyName = Field(
        default="", description="Reference to the passphrase of an encrypted key, in the same forms."
    )
    certificate: Url = Field(
        default="",
        description="Certificates of the key, a PEM file with the key's own first, for those who trust a CA rather "
        "than the key. Empty: the signature names the key alone.",
    )
    overwrite: bool = Field(default=False, description="Replace a signature by another key.")
    decrypt_key: KeyName = ""
    decrypt_mode: Annotated[EncryptionMode, with_key("decrypt_key")] = Field(
        default=EncryptionMode.AES_GCM, title="Decryption mode", description="How an encrypted checkpoint is encrypted."
    )
    storage: StorageName = ""

    @field_validator("key")
    @classmethod
    def _check_key(cls, value: str) -> str:
        if not value:
            raise ValueError("is needed: env:NAME, file:PATH or block:NAME, which says where the key is kept")
        return value
