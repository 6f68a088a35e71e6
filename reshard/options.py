"""Types of keyword arguments of the functions in `reshard`.

`python -m docs.write_keywords` writes this module from the fields of requests, which check the values.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from reshard.core.changes.changes import Fp8, OverflowPolicy, Selection
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.layouts.registry import TargetLayout
from reshard.core.layouts.torch_dist.options import TransformerImpl
from reshard.core.layouts.unified.names import UnifiedNaming
from reshard.core.request.changing import Dialect, UnmatchedPolicy
from reshard.core.request.target import OutputFormat, Sha256Level
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.strategy.integrated_save import IntegratedSave

PathOrUrl = str | os.PathLike[str]
"""A path, or a URL with a protocol that fsspec knows, without a password."""
Number = int | str
"""A number, or one of the words that its option has."""
Ranks = int | str | Iterable[int]
"""Ranks: `[3, 7]`, `range(0, 512)`, `"0-511"`."""
Size = int | str
"""Bytes, `2 << 30`, or a text with a unit, `"2GiB"`."""
Texts = str | Collection[str]
"""A text, or several."""
Rules = str | Sequence[str] | Mapping[str, str]
"""Rules in their order: `{"*": "bfloat16"}`, `["*=bfloat16"]`, or a single one, `"*=bfloat16"`."""
Settings = str | Sequence[str] | Mapping[str, str | int | float | bool | None]
"""Names with their values: `{"epoch_num": 5}`, `["epoch_num=5"]`, or a single one, `"epoch_num=5"`."""
DialectName = Dialect | Literal["auto", "hub", "transformers5"]
EncryptionModeName = EncryptionMode | Literal["AES-GCM", "AES-CBC", "SM4-CBC"]
Fp8Name = Fp8 | Literal["auto", "keep", "dequantize", "quantize"]
IntegratedSaveName = IntegratedSave | Literal["auto", "yes", "no"]
OutputFormatName = OutputFormat | Literal["same", "ckpt", "safetensors"]
OverflowPolicyName = OverflowPolicy | Literal["fail", "allow"]
SelectionName = Selection | Literal["all", "weights-only"]
Sha256LevelName = Sha256Level | Literal["none", "target", "source"]
TargetLayoutName = (
    TargetLayout | Literal["ranks", "unified", "checkpoint2", "torch_dist", "dcp", "megatron", "universal"]
)
TransformerImplName = TransformerImpl | Literal["source", "transformer_engine", "local"]
UnifiedNamingName = UnifiedNaming | Literal["huggingface", "mindspore"]
UnmatchedPolicyName = UnmatchedPolicy | Literal["drop", "fail"]
VerifyLevelName = VerifyLevel | Literal["none", "structure", "checksum", "content"]
