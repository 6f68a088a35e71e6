"""MindSpore's `CheckpointConfig`: when training saves checkpoints, how many are kept, and how files are written."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

from reshard.core.changes.info_texts import InfoValue, check_info, format_info
from reshard.core.files.numpy_values import is_array_like
from reshard.core.mindspore_api.arguments import (
    DEFAULT_MODE,
    check_async_save,
    check_format,
    check_type,
    check_value,
    is_network,
    key_of,
)
from reshard.core.mindspore_api.cells import join_mindspore
from reshard.core.mindspore_api.failures import reading
from reshard.core.options.fields import check_key_name
from reshard.core.runtime.keys import EncryptionMode, Key, KeyNames, resolve_keys

FROM_TRAINING = ("epoch_num", "step_num")
"""Names in `append_info` whose values come from the training that saves; a conversion keeps the source's."""

_COUNTS = ("save_checkpoint_steps", "save_checkpoint_seconds", "keep_checkpoint_max", "keep_checkpoint_per_n_minutes")


@dataclass(frozen=True, eq=False)
class CheckpointConfig:
    """When to save, how many checkpoints to keep and how to write files: MindSpore's names, order, defaults and rules.

    Attributes:
        save_checkpoint_steps: save every so many steps.
        save_checkpoint_seconds: save every so many seconds; None if there are steps, which take precedence.
        keep_checkpoint_max: number of checkpoints to keep. Unless 0, `keep_checkpoint_per_n_minutes` is None. If both
            are 0, one is kept.
        keep_checkpoint_per_n_minutes: keep the first of the checkpoints made within so many minutes.
        integrated_save: see `ModelCheckpoint`.
        async_save: write in the background: in a thread (True or `thread`), or in a process of its own (`process`).
        saved_network: what to save in place of the network being trained.
        append_info: entries for every file: a list of `"epoch_num"`, `"step_num"` and one dict, or a dict.
        enc_key: the key, or its name. None: no encryption.
        enc_mode: mode of encryption; counts only with a key.
        exception_save: save once more when an exception ends the training.
        crc_check: add a CRC to files.
        remove_redundancy: keep a slice on one of the ranks that share it only; see `ModelCheckpoint` for what it needs.
        format: kind of the files.
        incremental: accepted without effect.
        enable_redundance: accepted without effect.

    Raises:
        TypeError, ValueError: an argument is of a wrong type or value, or excludes another one.
    """

    save_checkpoint_steps: int | None = 1
    save_checkpoint_seconds: int | None = 0
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_per_n_minutes: int | None = 0
    integrated_save: bool = True
    async_save: bool | str = False
    saved_network: Any = None
    append_info: Any = None
    enc_key: bytes | str | None = field(default=None, repr=False)
    enc_mode: str = DEFAULT_MODE
    exception_save: bool = False
    crc_check: bool = False
    remove_redundancy: bool = False
    format: str = "ckpt"
    _: KW_ONLY
    incremental: bool = False
    enable_redundance: bool = False

    def __post_init__(self) -> None:
        self._check_saving()
        self._check_files()
        _check_append_info(self.append_info)
        steps, seconds, most, minutes = (getattr(self, name) for name in _COUNTS)
        chosen = {
            "save_checkpoint_seconds": None if steps else seconds,
            "keep_checkpoint_max": most if most or minutes else 1,
            "keep_checkpoint_per_n_minutes": None if most else minutes,
        }
        for name, value in chosen.items():
            object.__setattr__(self, name, value)  # frozen for its users
        join_mindspore(self, "CheckpointConfig")  # MindSpore's `ModelCheckpoint` takes no others

    @property
    def append_dict(self) -> dict[str, Any] | None:
        """Entries of every file; those that come from the training are 0. None if there are none."""
        info = self.append_info or []
        names = [] if isinstance(info, Mapping) else [name for name in FROM_TRAINING if name in info]
        return dict.fromkeys(names, 0) | self._given_info() or None

    @property
    def map_param_inc(self) -> bool:
        """True if increments of map parameters only were asked for."""
        return self.incremental

    def get_checkpoint_policy(self) -> dict[str, Any]:
        """Return when to save, what, and how many checkpoints to keep."""
        return {name: getattr(self, name) for name in (*_COUNTS, "saved_network")}

    def key(self) -> Key | None:
        """Return the key of encrypted files.

        Raises:
            ValueError: there is none of this name, or it does not suit the mode.
        """
        if not isinstance(self.enc_key, str):
            return key_of("enc_key", self.enc_key, self.enc_mode)
        with reading():
            return resolve_keys(KeyNames(target=self.enc_key, target_mode=EncryptionMode(self.enc_mode))).target

    def options(self) -> dict[str, Any]:
        """Return the equivalent fields of a ConversionRequest; what concerns training alone has none.

        Raises:
            ValueError: a conversion cannot do what is asked for.
        """
        if isinstance(self.enc_key, bytes):
            raise ValueError("'enc_key' is a key itself; a conversion takes the name of one: env:NAME or file:PATH")
        encryption = {"encrypt_key": self.enc_key, "encrypt_mode": self.enc_mode} if self.enc_key else {}
        return {
            "format": self.format,
            "write_crc": self.crc_check,
            "append_info": [_info_option(name, value) for name, value in self._given_info().items()],
            "remove_redundancy": self.remove_redundancy,
            **encryption,
        }

    def latest_options(self) -> dict[str, Any]:
        """Return the equivalent fields of a LatestConversionRequest: those of every conversion, and retention."""
        return self.options() | {
            "keep_checkpoint_max": self.keep_checkpoint_max or 0,
            "keep_checkpoint_per_n_minutes": self.keep_checkpoint_per_n_minutes or 0,
        }

    def _given_info(self) -> dict[str, Any]:
        info = self.append_info or {}
        return dict(
            info if isinstance(info, Mapping) else next((each for each in info if isinstance(each, Mapping)), {})
        )

    def _check_saving(self) -> None:
        counts = {name: getattr(self, name) for name in _COUNTS}
        for name, count in counts.items():
            if count is not None:
                check_type(name, count, int)
                if count < 0:
                    raise ValueError(f"{name!r} has to be 0 or greater, not {count}")
        if not any(counts.values()):
            raise ValueError(f"{', '.join(_COUNTS)} cannot all be None or 0")
        for name in ("integrated_save", "exception_save"):
            check_type(name, getattr(self, name), bool)
        check_async_save(self.async_save)
        if self.saved_network is not None and not is_network(self.saved_network):
            raise TypeError(
                "'saved_network' has to be None, a mapping of names to arrays or a network, "
                f"not {type(self.saved_network)}"
            )

    def _check_files(self) -> None:
        if not isinstance(self.enc_key, bytes | str | None):
            # the value may be a key in a wrong type: it is not repeated
            raise ValueError(f"'enc_key' has to be None, bytes or a string, not {type(self.enc_key)}")
        check_value("enc_mode", self.enc_mode, str)
        check_value("crc_check", self.crc_check, bool)
        check_value("remove_redundancy", self.remove_redundancy, bool)
        if self.enc_mode not in [*EncryptionMode]:
            raise ValueError(f"'enc_mode' has to be one of {', '.join(EncryptionMode)}, not {self.enc_mode!r}")
        check_format("format", self.format)
        if isinstance(self.enc_key, str):
            check_key_name(self.enc_key or "?")  # an invalid name may be the key itself: it is not repeated
        else:
            key_of("enc_key", self.enc_key, self.enc_mode)
        if self.format == "safetensors":
            self._check_safetensors()
        if self.enc_key and self.crc_check:
            raise ValueError("'enc_key' and 'crc_check' exclude each other: an encrypted file has no CRC")

    def _check_safetensors(self) -> None:
        if self.enc_key or self.enc_mode != DEFAULT_MODE:
            raise ValueError("format='safetensors' excludes enc_key and enc_mode: MindSpore encrypts .ckpt files only")
        if self.crc_check:
            raise ValueError(
                "format='safetensors' excludes crc_check, as in MindSpore's CheckpointConfig; its save_checkpoint "
                "writes such files, and so does a conversion that is asked for write_crc"
            )
        if self.exception_save or self.incremental:
            raise ValueError("format='safetensors' excludes exception_save and incremental, as in MindSpore")


def as_config(given: object) -> CheckpointConfig:
    """Return reshard's own CheckpointConfig as it is, MindSpore's as one of reshard's.

    Raises:
        TypeError: it is neither.
        ValueError: MindSpore's has settings that exclude each other here.
    """
    if isinstance(given, CheckpointConfig):
        return given
    if not hasattr(given, "get_checkpoint_policy"):
        raise TypeError(f"'config' has to be a CheckpointConfig, not {type(given)}")
    theirs = {each.name: each.name for each in fields(CheckpointConfig)}
    theirs |= {"append_info": "append_dict", "incremental": "map_param_inc"}
    # older versions lack some
    return CheckpointConfig(**{ours: getattr(given, name) for ours, name in theirs.items() if hasattr(given, name)})


def _check_append_info(info: object) -> None:
    if info is None:
        return
    if not isinstance(info, list | Mapping):
        raise TypeError(f"'append_info' has to be a list, which may hold one dict, or a dict, not {type(info)}")
    elements = [info] if isinstance(info, Mapping) else info
    allowed = f"{' and '.join(map(repr, FROM_TRAINING))} and one dict"
    for element in elements:
        if not isinstance(element, str | Mapping):
            raise TypeError(f"'append_info' may hold {allowed}, not {element!r}")
        if isinstance(element, str) and element not in FROM_TRAINING:
            raise ValueError(f"'append_info' may hold {allowed}, not {element!r}")
    dicts = [element for element in elements if isinstance(element, Mapping)]
    if len(dicts) > 1:
        raise TypeError("'append_info' may hold one dict only")
    for name, value in dicts[0].items() if dicts else ():
        if not isinstance(name, str):
            raise TypeError(f"'append_info' has to have strings for names, not {name!r}")
        if not (isinstance(value, InfoValue) or is_array_like(value) or callable(getattr(value, "get_state", None))):
            raise TypeError(
                f"'append_info': {name!r} is of type {type(value).__name__}, not a number, a bool, a text, an array or "
                "a random generator with get_state()"
            )


def _info_option(name: str, value: Any) -> str:
    if not name or "=" in name:
        raise ValueError(f"'append_info': a conversion appends no {name!r}: the name is empty, or has a '=' in it")
    if not isinstance(value, InfoValue):
        raise ValueError(f"'append_info': {name!r} is of type {type(value).__name__}; a conversion appends no arrays")
    return format_info(name, check_info(name, value))
