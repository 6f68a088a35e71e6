"""What MindSpore's CheckpointConfig makes of its arguments, and what reshard's does."""

from dataclasses import dataclass, field
from typing import Any

from reshard.core.mindspore_api.checkpoint_config import CheckpointConfig

KEY = b"0123456789abcdef"
KEY_NAME = "env:CHECKPOINT_KEY"


@dataclass(frozen=True)
class Rule:
    """Arguments, and what becomes of them.

    Attributes:
        given: keyword arguments of MindSpore's; reshard is given `KEY_NAME` in place of `KEY`.
        positional: those in front.
        refused: the builtin type of the exception that MindSpore raises; empty: none.
        message: part of what reshard says; empty: it takes them.
        kept: MindSpore's keep_checkpoint_max and keep_checkpoint_per_n_minutes, None being 0.
        info: its append_dict.
        differs: why reshard does something else on purpose.
    """

    given: dict[str, Any]
    refused: str = ""
    message: str = ""
    kept: tuple[int, int] = (5, 0)
    info: dict[str, Any] = field(default_factory=dict)
    differs: str = ""
    positional: tuple[Any, ...] = ()


def configured(rule: Rule) -> CheckpointConfig:
    """What reshard makes of the arguments."""
    positional: Any = [KEY_NAME if value is KEY else value for value in rule.positional]
    named: Any = {name: KEY_NAME if value is KEY else value for name, value in rule.given.items()}
    return CheckpointConfig(*positional, **named)


PROPERTIES = (
    *("save_checkpoint_steps", "save_checkpoint_seconds", "keep_checkpoint_max", "keep_checkpoint_per_n_minutes"),
    *("integrated_save", "async_save", "saved_network", "enc_mode", "crc_check", "format", "append_dict"),
    *("map_param_inc", "exception_save", "remove_redundancy", "enable_redundance"),
)
"""What both have; `enc_key` is a key there, and the name of one here."""

_ONLY_CKPT = "format='safetensors' excludes enc_key and enc_mode"
_NO_CRC = "format='safetensors' excludes crc_check, as in MindSpore's CheckpointConfig"

RULES = [
    Rule({}),
    Rule({"enc_key": KEY}),
    Rule({"enc_key": KEY, "enc_mode": "SM4-CBC"}),
    Rule({"enc_mode": "AES-CBC"}),
    Rule({"enc_mode": "AES-CBC", "crc_check": True}),
    Rule(
        {"enc_key": KEY, "crc_check": True},
        message="'enc_key' and 'crc_check' exclude each other",
        differs="MindSpore says so in its documentation, and writes a CRC of nothing",
    ),
    Rule({"enc_key": KEY, "format": "safetensors"}, "ValueError", _ONLY_CKPT),
    Rule({"enc_mode": "AES-CBC", "format": "safetensors"}, "ValueError", _ONLY_CKPT),
    Rule({"crc_check": True, "format": "safetensors"}, "ValueError", _NO_CRC),
    Rule({"crc_check": True}),
    Rule({"crc_check": 1}, "ValueError", "'crc_check' has to be bool"),
    Rule({"format": "safetensors"}),
    Rule({"format": "xyz"}, message="format", differs="MindSpore refuses it when it saves"),
    Rule({"enc_mode": "AES-XYZ"}, message="enc_mode", differs="MindSpore refuses it when it encrypts"),
    Rule({"enc_key": "0123"}, "ValueError", "where the key is kept; never the key itself"),
    *(
        Rule({"enc_key": wrong}, "ValueError", f"'enc_key' has to be None, bytes or a string, not {type(wrong)}")
        for wrong in (5, 1.5, True, [1], {"a": 1})
    ),
    Rule({"remove_redundancy": True}),
    Rule({"remove_redundancy": True, "crc_check": True}),
    Rule({"remove_redundancy": True, "enc_key": KEY}),
    Rule({"remove_redundancy": True, "format": "safetensors"}),
    Rule({"remove_redundancy": 1}, "ValueError", "'remove_redundancy' has to be bool"),
    Rule({"keep_checkpoint_max": 3}, kept=(3, 0)),
    Rule({"keep_checkpoint_max": 0}, kept=(1, 0)),
    Rule({"keep_checkpoint_max": None, "keep_checkpoint_per_n_minutes": None}, kept=(1, 0)),
    Rule({"keep_checkpoint_per_n_minutes": 10}),
    Rule({"keep_checkpoint_max": 3, "keep_checkpoint_per_n_minutes": 10}, kept=(3, 0)),
    Rule({"keep_checkpoint_max": 0, "keep_checkpoint_per_n_minutes": 10}, kept=(0, 10)),
    Rule({"keep_checkpoint_max": -1}, "ValueError", "has to be 0 or greater"),
    Rule({"keep_checkpoint_per_n_minutes": -1}, "ValueError", "has to be 0 or greater"),
    Rule({"keep_checkpoint_max": 2.5}, "TypeError", "keep_checkpoint_max"),
    Rule({"keep_checkpoint_max": True}, "TypeError", "keep_checkpoint_max"),
    Rule({"append_info": None}),
    Rule({"append_info": []}),
    Rule({"append_info": [{"a": 1, "b": 2.5, "c": True, "d": "5"}]}, info={"a": 1, "b": 2.5, "c": True, "d": "5"}),
    Rule(
        {"append_info": ["epoch_num", "step_num", {"a": 1}]},
        info={"epoch_num": 0, "step_num": 0, "a": 1},
        differs="MindSpore fills in what training says; a conversion keeps what the source has",
    ),
    Rule({"append_info": ["epoch_num", {"epoch_num": 5}]}, info={"epoch_num": 5}),
    Rule({"append_info": [{"a": 1}, {"b": 1}]}, "TypeError", "may hold one dict only"),
    Rule({"append_info": ["loss"]}, "ValueError", "'epoch_num' and 'step_num' and one dict, not 'loss'"),
    Rule({"append_info": [5]}, "TypeError", "'epoch_num' and 'step_num' and one dict, not 5"),
    Rule({"append_info": [{"a": None}]}, "TypeError", "'a' is of type NoneType, not a number, a bool, a text"),
    Rule({"append_info": [{"a": [1]}]}, "TypeError", "'a' is of type list, not a number, a bool, a text"),
    Rule({"append_info": [{1: 1}]}, "TypeError", "has to have strings for names"),
    Rule({"append_info": "epoch_num"}, "TypeError", "has to be a list, which may hold one dict, or a dict"),
    Rule({}, positional=(10, 0, 3, 0, True, False, None, [{"a": 1}], KEY, "AES-CBC"), kept=(3, 0), info={"a": 1}),
    Rule({}, positional=(0, 60, 0, 10, False, "thread"), kept=(0, 10)),
    Rule({}, positional=(5, 4, 0, 0), kept=(1, 0)),
    Rule({}, positional=(None, None, None, 7), kept=(0, 7)),
    Rule({"exception_save": True, "async_save": "process", "incremental": True, "enable_redundance": True}),
    Rule({"save_checkpoint_steps": 0, "keep_checkpoint_max": 0}, "ValueError", "cannot all be None or 0"),
    Rule({"save_checkpoint_steps": "1"}, "TypeError", "save_checkpoint_steps"),
    Rule({"save_checkpoint_seconds": -1}, "ValueError", "has to be 0 or greater"),
    Rule({"integrated_save": 1}, "TypeError", "integrated_save"),
    Rule({"async_save": "x"}, "ValueError", "async_save"),
    Rule({"exception_save": 1}, "TypeError", "exception_save"),
    Rule({"saved_network": 5}, "TypeError", "has to be None, a mapping of names to arrays or a network"),
    Rule({"exception_save": True, "format": "safetensors"}, "ValueError", "excludes exception_save and incremental"),
    Rule({"incremental": True, "format": "safetensors"}, "ValueError", "excludes exception_save and incremental"),
    Rule({"foo": 1}, message="foo", differs="MindSpore passes over arguments that it does not know"),
    Rule({"append_info": {"a": 1}}, "TypeError", info={"a": 1}, differs="a dict says the same as a list of it"),
]
