"""MindSpore's CheckpointConfig: settings that conversions obey, and settings of training, kept without effect."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    field_validator,
    model_validator,
)

from reshard.core.request.fields import check_key_name
from reshard.core.request.info_texts import InfoValue, check_info, format_info

_FROM_TRAINING = ("epoch_num", "step_num")
"""Values that MindSpore takes from the training that saves; a conversion keeps the source's."""


_COUNTS = ("save_checkpoint_steps", "save_checkpoint_seconds", "keep_checkpoint_max", "keep_checkpoint_per_n_minutes")
_Count = Annotated[StrictInt, Field(ge=0)] | None


class CheckpointConfig(BaseModel):
    """How checkpoint files are written, with MindSpore's names, order, defaults and rules on what excludes what.

    Differences from MindSpore's: the key is named, not given; `append_info` may also be a dict, and `"epoch_num"` and
    `"step_num"` in it mean the source's values, which are always kept; tensors cannot be appended; encryption with a
    CRC is refused, where MindSpore writes an invalid CRC; `saved_network` is a dict of arrays; unknown arguments are
    refused.

    Attributes:
        save_checkpoint_steps: for training only: kept, without effect, as all fields marked so below.
        save_checkpoint_seconds: None if there are steps, which take precedence.
        keep_checkpoint_max: number of the newest checkpoints to keep. Unless 0, `keep_checkpoint_per_n_minutes` does
            not count, and is None. If both are 0, one, as in MindSpore.
        keep_checkpoint_per_n_minutes: keep one of the checkpoints that were made within so many minutes.
        integrated_save: for training only.
        async_save: for training only; a bool, `process` or `thread`.
        saved_network: for training only.
        append_info: entries for every file: a dict of numbers, flags and texts, or a list with one.
        enc_key: name of the key: env:NAME, file:PATH or block:NAME. None: no encryption.
        enc_mode: mode of encryption; counts only with a key.
        exception_save: for training only.
        crc_check: write a CRC into files.
        remove_redundancy: keep a slice on one of the ranks that share it only.
        format: kind of the files.
        incremental: for training only.
        enable_redundance: for training only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    save_checkpoint_steps: _Count = 1
    save_checkpoint_seconds: _Count = 0
    keep_checkpoint_max: _Count = 5
    keep_checkpoint_per_n_minutes: _Count = 0
    integrated_save: StrictBool = True
    async_save: StrictBool | Literal["process", "thread"] = False
    saved_network: Any = None
    append_info: dict[str, Any] = {}
    enc_key: str | None = None
    enc_mode: Literal["AES-GCM", "AES-CBC", "SM4-CBC"] = "AES-GCM"
    exception_save: StrictBool = False
    crc_check: StrictBool = False
    remove_redundancy: StrictBool = False
    format: Literal["ckpt", "safetensors"] = "ckpt"
    incremental: StrictBool = False
    enable_redundance: StrictBool = False
    _from_training: tuple[str, ...] = PrivateAttr(())

    def __init__(
        self,
        save_checkpoint_steps: int | None = 1,
        save_checkpoint_seconds: int | None = 0,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_per_n_minutes: int | None = 0,
        integrated_save: bool = True,
        async_save: bool | str = False,
        saved_network: Any = None,
        append_info: Any = None,
        enc_key: Any = None,
        enc_mode: str = "AES-GCM",
        exception_save: bool = False,
        crc_check: bool = False,
        remove_redundancy: bool = False,
        format: str = "ckpt",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            save_checkpoint_steps=save_checkpoint_steps,
            save_checkpoint_seconds=save_checkpoint_seconds,
            keep_checkpoint_max=keep_checkpoint_max,
            keep_checkpoint_per_n_minutes=keep_checkpoint_per_n_minutes,
            integrated_save=integrated_save,
            async_save=async_save,
            saved_network=saved_network,
            append_info=append_info,
            enc_key=enc_key,
            enc_mode=enc_mode,
            exception_save=exception_save,
            crc_check=crc_check,
            remove_redundancy=remove_redundancy,
            format=format,
            **kwargs,
        )
        if isinstance(append_info, list):
            self._from_training = tuple(name for name in _FROM_TRAINING if name in append_info)

    @property
    def append_dict(self) -> dict[str, InfoValue] | None:
        """Information added to every file; source values of `epoch_num` and `step_num` appear as 0. None if empty."""
        return dict.fromkeys(self._from_training, 0) | self.append_info or None

    @property
    def map_param_inc(self) -> bool:
        """True if training saves increments of map parameters only."""
        return self.incremental

    def get_checkpoint_policy(self) -> dict[str, Any]:
        """Return training's settings: when to save, what, and how many checkpoints to keep."""
        return {
            "save_checkpoint_steps": self.save_checkpoint_steps,
            "save_checkpoint_seconds": self.save_checkpoint_seconds,
            "keep_checkpoint_max": self.keep_checkpoint_max,
            "keep_checkpoint_per_n_minutes": self.keep_checkpoint_per_n_minutes,
            "saved_network": self.saved_network,
        }

    @field_validator("saved_network")
    @classmethod
    def _check_network(cls, value: object) -> object:
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"must be None or a dict of arrays, not {type(value).__name__}")
        return value

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
        # an invalid name may be the key itself: it is not repeated
        return value if value is None else check_key_name(value if isinstance(value, str) else "?")

    @model_validator(mode="after")
    def _choose_counts(self) -> Self:
        steps, seconds, most, minutes = (getattr(self, name) for name in _COUNTS)
        if not (steps or seconds or most or minutes):
            raise ValueError(f"{', '.join(_COUNTS)} cannot all be None or 0")
        chosen = {
            "save_checkpoint_seconds": None if steps else seconds,
            "keep_checkpoint_max": most if most or minutes else 1,
            "keep_checkpoint_per_n_minutes": None if most else minutes,
        }
        for name, value in chosen.items():
            object.__setattr__(self, name, value)  # the model is frozen for its users
        return self

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
            if self.exception_save or self.incremental:
                raise ValueError("format='safetensors' excludes exception_save and incremental, as in MindSpore")
        if self.enc_key and self.crc_check:
            raise ValueError("enc_key and crc_check exclude each other: an encrypted file has no CRC")
        return self

    def options(self) -> dict[str, Any]:
        """Return the equivalent fields of a ConversionRequest; retention does not concern a single conversion."""
        encryption = {"encrypt_key": self.enc_key, "encrypt_mode": self.enc_mode} if self.enc_key else {}
        return {
            "format": self.format,
            "write_crc": self.crc_check,
            "append_info": [format_info(name, value) for name, value in self.append_info.items()],
            "remove_redundancy": self.remove_redundancy,
            **encryption,
        }

    def latest_options(self) -> dict[str, Any]:
        """Return the equivalent fields of a LatestConversionRequest: those of every conversion, and retention."""
        return self.options() | {
            "keep_checkpoint_max": self.keep_checkpoint_max or 0,
            "keep_checkpoint_per_n_minutes": self.keep_checkpoint_per_n_minutes or 0,
        }
