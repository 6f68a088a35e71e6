"""MindSpore's CheckpointConfig, as far as a conversion writes what it is about."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    field_validator,
    model_validator,
)

from core.info_texts import InfoValue, check_info, format_info
from core.request import key_name

_FROM_TRAINING = ("epoch_num", "step_num")
"""What MindSpore takes from the training that saves; a conversion keeps what the source has."""


def _count(value: object) -> object:
    return 0 if value is None else value


_Count = Annotated[StrictInt, BeforeValidator(_count), Field(ge=0)]


class CheckpointConfig(BaseModel):
    """How checkpoint files are written, with MindSpore's names, defaults and rules on what excludes what.

    It differs from MindSpore's in this: the key is named, not given; `append_info` may also be a dict, and
    `"epoch_num"` and `"step_num"` in it stand for what the source has, which is kept in any case; tensors cannot be
    appended; encryption with a CRC is refused, where MindSpore writes a CRC that is none.

    Attributes:
        keep_checkpoint_max: how many checkpoints are kept, the newest. Not 0: `keep_checkpoint_per_n_minutes` does not
            count. Where both are 0, as in MindSpore, 1.
        keep_checkpoint_per_n_minutes: of checkpoints that were made within so many minutes one is kept.
        append_info: what every file gets: a dict of numbers, flags and texts, or a list with one.
        enc_key: where the key is kept: env:NAME, file:PATH or block:NAME. None: nothing is encrypted.
        enc_mode: how; counts only if there is a key.
        crc_check: whether files get a CRC.
        remove_redundancy: whether only one of the ranks that share a slice keeps it.
        format: kind of the files.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    keep_checkpoint_max: _Count = 5
    keep_checkpoint_per_n_minutes: _Count = 0
    append_info: dict[str, Any] = {}
    enc_key: str | None = None
    enc_mode: Literal["AES-GCM", "AES-CBC", "SM4-CBC"] = "AES-GCM"
    crc_check: StrictBool = False
    remove_redundancy: StrictBool = False
    format: Literal["ckpt", "safetensors"] = "ckpt"

    @field_validator("append_info", mode="before")
    @classmethod
    def _join_info(cls, value: object) -> object:
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return value
        if not isinstance(value, list):
            raise ValueError("must be a dict, or a list that may hold one")
        unknown = [each for each in value if not isinstance(each, Mapping) and each not in _FROM_TRAINING]
        if unknown:
            raise ValueError(
                f"a list may hold {' and '.join(map(repr, _FROM_TRAINING))} and one dict, not {unknown[0]!r}"
            )
        dicts = [each for each in value if isinstance(each, Mapping)]
        if len(dicts) > 1:
            raise ValueError("a list may hold one dict only")
        return dicts[0] if dicts else {}

    @field_validator("append_info")
    @classmethod
    def _check_info(cls, value: dict[str, Any]) -> dict[str, InfoValue]:
        for name, each in value.items():
            if not name or "=" in name:
                raise ValueError(f"{name!r} is no name: it is empty, or has a '=' in it")
            if not isinstance(each, InfoValue):
                raise ValueError(f"{name!r} is of type {type(each).__name__}, not a number, a bool or a text")
            check_info(name, each)
        return value

    @field_validator("enc_key", mode="before")
    @classmethod
    def _check_key(cls, value: object) -> object:
        # what is no name may be the key itself: it is not repeated
        return value if value is None else key_name(value if isinstance(value, str) else "?")

    @model_validator(mode="after")
    def _check_protection(self) -> Self:
        if self.format == "safetensors":
            if self.enc_key or self.enc_mode != "AES-GCM":
                raise ValueError(
                    "format='safetensors' excludes enc_key and enc_mode: MindSpore encrypts .ckpt files only"
                )
            if self.crc_check:
                raise ValueError(
                    "format='safetensors' excludes crc_check, as in MindSpore's CheckpointConfig; its save_checkpoint "
                    "writes such files, and so does a conversion that is asked for write_crc"
                )
        if self.enc_key and self.crc_check:
            raise ValueError("enc_key and crc_check exclude each other: an encrypted file has no CRC")
        return self

    def options(self) -> dict[str, Any]:
        """The fields of a ConversionRequest that say the same; retention is no matter of one conversion."""
        encryption = {"encrypt_key": self.enc_key, "encrypt_mode": self.enc_mode} if self.enc_key else {}
        return {
            "format": self.format,
            "write_crc": self.crc_check,
            "append_info": [format_info(name, value) for name, value in self.append_info.items()],
            "remove_redundancy": self.remove_redundancy,
            **encryption,
        }

    def latest_options(self) -> dict[str, Any]:
        """The fields of a LatestConversionRequest that say the same: those of every conversion, and what is kept."""
        per_minutes = 0 if self.keep_checkpoint_max else self.keep_checkpoint_per_n_minutes
        most = self.keep_checkpoint_max or (0 if per_minutes else 1)
        return self.options() | {"keep_checkpoint_max": most, "keep_checkpoint_per_n_minutes": per_minutes}
