"""Cases of the functions that load and save files, change their format, and merge or find slices."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tests.conformance.api_harness import ApiCase, Call, array, function, network, parameter, strategy
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.places import FIXTURES
from tests.support.strategy_writer import FileLayout, write_strategy_file

Files = Callable[[Path], object]

_PLAIN = (FIXTURES / "formats" / "plain.ckpt").read_bytes()
_FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)
_BRAIN = np.array([1.5, -2.25, np.nan], ml_dtypes.bfloat16)
_MODEL: dict[str, np.ndarray] = {
    "dense.weight": _FLOATS,
    "dense.bias": np.arange(3, dtype=np.float16),
    "other": np.arange(4, dtype=np.int64),
    "mask": np.array([True, False]),
    "brain": _BRAIN[:2],
    "scalar": np.array(2.5, np.float64),
    "u8": np.arange(5, dtype=np.uint8),
}
_KEY = b"0123456789abcdef"


def _values(names: str = "") -> dict[str, dict[str, object]]:
    return {name: parameter(name, values) for name, values in _MODEL.items() if names in name}


def _ckpt(name: str = "a.ckpt", **arrays: np.ndarray) -> Files:
    entries = [
        (key, _tag(values), values.shape, values.tobytes()) for key, values in (arrays or {"w": _FLOATS}).items()
    ]
    return _file(name, checkpoint_bytes(*entries))


def _tag(values: np.ndarray) -> str:
    return {"float32": "Float32", "int32": "Int32", "bfloat16": "BFloat16"}[values.dtype.name]


def _safetensors(name: str = "a.safetensors", **arrays: np.ndarray) -> Files:
    def make(directory: Path) -> None:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        save_file(arrays or {"w": _FLOATS}, directory / name, {"format": "ms"})

    return make


def _file(name: str, content: bytes) -> Files:
    def make(directory: Path) -> None:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)

    return make


def _folder(name: str) -> Files:
    return lambda directory: (directory / name).mkdir(parents=True)


def _all(*makers: Files) -> Files:
    def make(directory: Path) -> None:
        for maker in makers:
            maker(directory)

    return make


def _fixture(path: str) -> Files:
    """A file or a directory that MindSpore wrote; files there are read-only."""

    def make(directory: Path) -> None:
        source = FIXTURES / path
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, directory / source.name)

    return make


# load_checkpoint


def _load(*arguments: object, **keywords: object) -> list[Call]:
    return [Call("load_checkpoint", arguments, keywords)]


_TWO = _ckpt("a.ckpt", **{"conv1.w": _FLOATS, "conv2.w": _FLOATS + 1, "dense.w": _FLOATS + 2})

_LOADS = [
    ApiCase("load_checkpoint: all dtypes", _load("plain.ckpt"), _fixture("formats/plain.ckpt")),
    ApiCase(
        "load_checkpoint: .safetensors",
        _load("plain.safetensors", format="safetensors"),
        _fixture("formats/plain.safetensors"),
    ),
    ApiCase("load_checkpoint: CRC", _load("crc.ckpt", crc_check=True), _fixture("formats/crc.ckpt")),
    ApiCase("load_checkpoint: CRC unchecked", _load("crc.ckpt"), _fixture("formats/crc.ckpt")),
    ApiCase(
        "load_checkpoint: CRC of .safetensors",
        _load("crc.safetensors", crc_check=True, format="safetensors"),
        _fixture("formats/crc.safetensors"),
    ),
    ApiCase(
        "load_checkpoint: wrong CRC",
        _load("a.ckpt", crc_check=True),
        _file("a.ckpt", checkpoint_bytes(("w", "Float32", (1,), b"abcd")) + b"crc_num" + bytes(10)),
    ),
    ApiCase("load_checkpoint: no CRC to check", _load("a.ckpt", crc_check=True), _ckpt()),
    *(
        ApiCase(
            f"load_checkpoint: {mode}",
            _load(f"encrypted_{mode}.ckpt", dec_key=_KEY * (2 if mode == "AES-CBC" else 1), dec_mode=mode),
            _fixture(f"formats/encrypted_{mode}.ckpt"),
        )
        for mode in ("AES-GCM", "AES-CBC", "SM4-CBC")
    ),
    ApiCase(
        "load_checkpoint: wrong key",
        _load("encrypted_AES-GCM.ckpt", dec_key=_KEY[::-1]),
        _fixture("formats/encrypted_AES-GCM.ckpt"),
    ),
    ApiCase(
        "load_checkpoint: wrong mode",
        _load("encrypted_AES-GCM.ckpt", dec_key=_KEY, dec_mode="AES-CBC"),
        _fixture("formats/encrypted_AES-GCM.ckpt"),
    ),
    ApiCase(
        "load_checkpoint: unknown mode",
        _load("encrypted_AES-GCM.ckpt", dec_key=_KEY, dec_mode="ROT13"),
        _fixture("formats/encrypted_AES-GCM.ckpt"),
    ),
    ApiCase("load_checkpoint: no key", _load("encrypted_SM4-CBC.ckpt"), _fixture("formats/encrypted_SM4-CBC.ckpt")),
    ApiCase("load_checkpoint: not encrypted", _load("a.ckpt", dec_key=_KEY), _ckpt()),
    ApiCase("load_checkpoint: key is no bytes", _load("a.ckpt", dec_key="0123456789abcdef"), _ckpt()),
    ApiCase("load_checkpoint: mode is no string", _load("a.ckpt", dec_mode=5), _ckpt()),
    ApiCase(
        "load_checkpoint: key for .safetensors",
        _load("a.safetensors", dec_key=_KEY, format="safetensors"),
        _safetensors(),
    ),
    ApiCase(
        "load_checkpoint: mode for .safetensors",
        _load("a.safetensors", dec_mode="AES-CBC", format="safetensors"),
        _safetensors(),
    ),
    ApiCase(
        "load_checkpoint: chosen", _load("a.ckpt", choice_func=function("lambda name: name.startswith('conv')")), _TWO
    ),
    ApiCase(
        "load_checkpoint: chosen of .safetensors",
        _load("a.safetensors", choice_func=function("lambda name: name == 'b'"), format="safetensors"),
        _safetensors(a=_FLOATS, b=_FLOATS),
    ),
    ApiCase("load_checkpoint: nothing chosen", _load("a.ckpt", choice_func=function("lambda name: False")), _TWO),
    ApiCase("load_checkpoint: specified", _load("a.ckpt", specify_prefix="conv"), _TWO),
    ApiCase("load_checkpoint: several specified", _load("a.ckpt", specify_prefix=["conv1", "dense"]), _TWO),
    ApiCase("load_checkpoint: filtered", _load("a.ckpt", filter_prefix=("conv1", "x")), _TWO),
    ApiCase("load_checkpoint: both", _load("a.ckpt", filter_prefix="conv1", specify_prefix="conv"), _TWO),
    ApiCase(
        "load_checkpoint: prefix before choice",
        _load("a.ckpt", specify_prefix="conv", choice_func=function("lambda name: False")),
        _TWO,
    ),
    ApiCase("load_checkpoint: nothing specified is left", _load("a.ckpt", specify_prefix="x"), _TWO),
    ApiCase("load_checkpoint: prefix is no string", _load("a.ckpt", filter_prefix=5), _TWO),
    ApiCase("load_checkpoint: prefixes are no strings", _load("a.ckpt", filter_prefix=["a", 5]), _TWO),
    ApiCase("load_checkpoint: prefix is empty", _load("a.ckpt", specify_prefix=""), _TWO),
    ApiCase("load_checkpoint: no prefixes", _load("a.ckpt", specify_prefix=[]), _TWO),
    ApiCase(
        "load_checkpoint: filtered .safetensors",
        _load("a.safetensors", filter_prefix="a", format="safetensors"),
        _safetensors(a=_FLOATS, b=_FLOATS),
        differs="MindSpore passes over prefixes there",
    ),
    ApiCase("load_checkpoint: no such file", _load("a.ckpt")),
    ApiCase("load_checkpoint: a directory", _load("a.ckpt"), _folder("a.ckpt")),
    ApiCase("load_checkpoint: name of another format", _load("a.safetensors"), _safetensors()),
    ApiCase("load_checkpoint: unknown format", _load("a.ckpt", format="npz"), _ckpt()),
    ApiCase("load_checkpoint: name is no string", _load(5)),
    ApiCase("load_checkpoint: crc_check is no bool", _load("a.ckpt", crc_check=1), _ckpt()),
    ApiCase("load_checkpoint: remove_redundancy is no bool", _load("a.ckpt", remove_redundancy=1), _ckpt()),
    ApiCase("load_checkpoint: damaged", _load("a.ckpt"), _file("a.ckpt", b"garbage" * 10)),
    ApiCase("load_checkpoint: empty", _load("a.ckpt"), _file("a.ckpt", b"")),
    ApiCase("load_checkpoint: truncated", _load("a.ckpt"), _file("a.ckpt", _PLAIN[:-5])),
    ApiCase(
        "load_checkpoint: .safetensors damaged",
        _load("a.safetensors", format="safetensors"),
        _file("a.safetensors", b"garbage" * 10),
    ),
    ApiCase(
        "load_checkpoint: redundancy removed",
        _load("checkpoint_1.safetensors", format="safetensors"),
        _fixture("formats/redundancy_removed/src_safetensors/rank_1/checkpoint_1.safetensors"),
    ),
    ApiCase(
        "load_checkpoint: later values replace earlier ones, pieces are joined",
        _load("a.ckpt"),
        _file(
            "a.ckpt",
            checkpoint_bytes(
                ("w", "Int32", (2,), bytes(8)),
                ("v", "Int32", (2,), b"abcd"),
                ("v", "Int32", (2,), b"efgh"),
                ("w", "Int32", (1,), b"wxyz"),
            ),
        ),
    ),
    ApiCase("load_checkpoint: network is none", _load("a.ckpt", 5), _ckpt()),
]


# save_checkpoint


def _save(*arguments: object, **keywords: object) -> list[Call]:
    return [Call("save_checkpoint", arguments, keywords)]


_SAVES = [
    ApiCase("save_checkpoint: a dict", _save(_values(), "a.ckpt")),
    ApiCase("save_checkpoint: a dict as .safetensors", _save(_values(), "a.safetensors", format="safetensors")),
    ApiCase(
        "save_checkpoint: a list", _save([{"name": name, "data": value} for name, value in _values().items()], "a.ckpt")
    ),
    ApiCase(
        "save_checkpoint: two of one name",
        _save([{"name": "w", "data": array(_FLOATS)}, {"name": "w", "data": array(_FLOATS + 1)}], "a.ckpt"),
        differs="MindSpore keeps the last one",
        ours="ValueError",
    ),
    ApiCase("save_checkpoint: an ending is added", _save(_values("dense"), "a.b")),
    ApiCase("save_checkpoint: another ending is added", _save(_values("dense"), "a.ckpt", format="safetensors")),
    ApiCase("save_checkpoint: a file is replaced", _save(_values("dense"), "a.ckpt"), _file("a.ckpt", b"old")),
    ApiCase("save_checkpoint: into no directory", _save(_values(), "no/a.ckpt")),
    ApiCase("save_checkpoint: a directory", _save(_values(), "there"), _folder("there")),
    ApiCase(
        "save_checkpoint: appended",
        _save(
            _values("dense"),
            "a.ckpt",
            append_dict={
                "epoch": 3,
                "lr": 0.5,
                "flag": True,
                "note": "héllo 昇思",
                "t": array(_FLOATS),
                "dense.bias": 1,
            },
        ),
    ),
    ApiCase(
        "save_checkpoint: chosen", _save(_values(), "a.ckpt", choice_func=function("lambda name: 'dense' in name"))
    ),
    ApiCase(
        "save_checkpoint: what is appended is not chosen",
        _save(_values(), "a.ckpt", append_dict={"x": 1}, choice_func=function("lambda name: name == 'u8'")),
    ),
    ApiCase("save_checkpoint: texts", _save({"w": parameter("w", _FLOATS), "note": "text"}, "a.ckpt")),
    ApiCase(
        "save_checkpoint: texts in .safetensors",
        _save({"w": parameter("w", _FLOATS)}, "a.safetensors", append_dict={"note": "text"}, format="safetensors"),
        differs="MindSpore cannot save them there",
    ),
    ApiCase(
        "save_checkpoint: redundancy removed",
        _save(_values("dense"), "a.safetensors", format="safetensors", remove_redundancy=True),
    ),
    ApiCase(
        "save_checkpoint: redundancy not removed",
        _save(_values("dense"), "a.safetensors", format="safetensors", remove_redundancy=False),
    ),
    *(
        ApiCase(
            f"save_checkpoint: each reads the other's, {keywords}",
            [
                Call("save_checkpoint", (_values(), f"a.{keywords.get('format', 'ckpt')}"), keywords),
                Call(
                    "load_checkpoint",
                    (f"a.{keywords.get('format', 'ckpt')}",),
                    {name.replace("enc_", "dec_"): value for name, value in keywords.items()},
                ),
            ],
            exchanged=True,
            opaque=frozenset({"a.ckpt", "a.safetensors"}),
        )
        for keywords in (
            {},
            {"format": "safetensors"},
            {"crc_check": True},
            {"enc_key": _KEY},
            {"enc_key": _KEY * 2, "enc_mode": "AES-CBC"},
            {"enc_key": _KEY, "enc_mode": "SM4-CBC"},
        )
    ),
    ApiCase(
        "save_checkpoint: each checks the other's CRC of .safetensors",
        [
            Call(
                "save_checkpoint",
                ({"w": parameter("w", _FLOATS), "s": parameter("s", np.array(5, np.int32))}, "a.safetensors"),
                {"crc_check": True, "format": "safetensors"},
            ),
            Call("load_checkpoint", ("a.safetensors",), {"crc_check": True, "format": "safetensors"}),
        ],
        exchanged=True,
        opaque=frozenset({"a.safetensors"}),
    ),
    ApiCase("save_checkpoint: key is no bytes", _save(_values(), "a.ckpt", enc_key="0123456789abcdef")),
    ApiCase(
        "save_checkpoint: key is too short",
        _save(_values(), "a.ckpt", enc_key=b"0123"),
        differs="MindSpore leaves what it has written so far",
        ours="ValueError",
    ),
    ApiCase(
        "save_checkpoint: unknown mode",
        _save(_values(), "a.ckpt", enc_key=_KEY, enc_mode="ROT13"),
        differs="MindSpore leaves what it has written so far",
        ours="ValueError",
    ),
    ApiCase("save_checkpoint: mode is no string", _save(_values(), "a.ckpt", enc_mode=5)),
    ApiCase(
        "save_checkpoint: key for .safetensors", _save(_values(), "a.safetensors", enc_key=_KEY, format="safetensors")
    ),
    ApiCase(
        "save_checkpoint: mode for .safetensors",
        _save(_values(), "a.safetensors", enc_mode="AES-CBC", format="safetensors"),
    ),
    ApiCase(
        "save_checkpoint: incremental for .safetensors",
        _save(_values(), "a.safetensors", incremental=True, format="safetensors"),
    ),
    ApiCase(
        "save_checkpoint: key and CRC",
        _save(_values(), "a.ckpt", enc_key=_KEY, crc_check=True),
        differs="MindSpore writes a file that it cannot load",
        ours="ValueError",
        opaque=frozenset({"a.ckpt"}),
    ),
    ApiCase("save_checkpoint: unknown format", _save(_values(), "a.npz", format="npz")),
    ApiCase("save_checkpoint: nothing that can be saved", _save(5, "a.ckpt")),
    ApiCase("save_checkpoint: name is no string", _save(_values(), 5)),
    ApiCase("save_checkpoint: names are no strings", _save({5: array(_FLOATS)}, "a.ckpt")),
    ApiCase("save_checkpoint: no value", _save({"w": 5}, "a.ckpt"), differs="documented nowhere", ours="TypeError"),
    ApiCase("save_checkpoint: a list of no parameters", _save([5], "a.ckpt")),
    ApiCase("save_checkpoint: a list of dicts without data", _save([{"name": "w"}], "a.ckpt")),
    ApiCase("save_checkpoint: a list with numbers as data", _save([{"name": "w", "data": 5}], "a.ckpt")),
    ApiCase("save_checkpoint: a list with numbers as names", _save([{"name": 5, "data": array(_FLOATS)}], "a.ckpt")),
    ApiCase("save_checkpoint: appended is no dict", _save(_values(), "a.ckpt", append_dict=[1])),
    ApiCase("save_checkpoint: appended is a list", _save(_values(), "a.ckpt", append_dict={"x": [1]})),
    ApiCase("save_checkpoint: appended names are no strings", _save(_values(), "a.ckpt", append_dict={5: 1})),
    ApiCase("save_checkpoint: integrated_save is no bool", _save(_values(), "a.ckpt", integrated_save=1)),
    ApiCase("save_checkpoint: async_save is no bool", _save(_values(), "a.ckpt", async_save=1)),
    ApiCase("save_checkpoint: unknown way", _save(_values(), "a.ckpt", async_save="later")),
    ApiCase("save_checkpoint: crc_check is no bool", _save(_values(), "a.ckpt", crc_check=1)),
    ApiCase("save_checkpoint: remove_redundancy is no bool", _save(_values(), "a.ckpt", remove_redundancy=1)),
    ApiCase(
        "save_checkpoint: nothing",
        _save([], "a.ckpt"),
        differs="MindSpore writes an empty file that it cannot load",
        ours="ValueError",
    ),
    ApiCase(
        "save_checkpoint: complex numbers are no parameters",
        _save({"w": parameter("w", _FLOATS), "z": 1j}, "a.ckpt"),
        differs="MindSpore saves another parameter in its place",
        ours="TypeError",
    ),
    ApiCase(
        "save_checkpoint: no elements",
        _save({"w": parameter("w", _FLOATS), "z": parameter("z", np.zeros((0, 3), np.float32))}, "a.ckpt"),
        differs="MindSpore leaves them out, and reads them",
    ),
]


# load_segmented_checkpoints


def _segments(*arguments: object, **keywords: object) -> list[Call]:
    return [Call("load_segmented_checkpoints", arguments, keywords)]


_PARTS = _all(
    _ckpt("parts/a_part0.ckpt", w=_FLOATS, step=_FLOATS[0]), _ckpt("parts/a_part1.ckpt", v=_FLOATS, step=_FLOATS[0])
)

_SEGMENTED = [
    ApiCase("load_segmented_checkpoints: parts", _segments("parts"), _PARTS),
    ApiCase("load_segmented_checkpoints: others beside them", _segments("parts"), _all(_PARTS, _file("parts/b", b"x"))),
    ApiCase("load_segmented_checkpoints: chosen", _segments("parts", specify_prefix="step"), _PARTS),
    ApiCase(
        "load_segmented_checkpoints: chosen of one file",
        _segments("parts", choice_func=function("lambda name: name == 'v'")),
        _PARTS,
        differs="what is left of all files counts",
    ),
    ApiCase(
        "load_segmented_checkpoints: nothing chosen",
        _segments("parts", choice_func=function("lambda name: False")),
        _PARTS,
    ),
    ApiCase("load_segmented_checkpoints: no directory", _segments("parts")),
    ApiCase("load_segmented_checkpoints: a file", _segments("parts"), _file("parts", b"")),
    ApiCase("load_segmented_checkpoints: name is no string", _segments(5)),
    ApiCase(
        "load_segmented_checkpoints: no files",
        _segments("parts"),
        _folder("parts"),
        differs="documented as a ValueError",
        ours="ValueError",
    ),
    ApiCase(
        "load_segmented_checkpoints: MindSpore's own parts",
        _segments("rank_1"),
        _fixture("subnetwork_parts/rank_1"),
    ),
]


# load_param_into_net, and networks that other functions fill


def _into_net(
    net: object, parameters: dict[str, np.ndarray | str] | list[int], *arguments: object, **keywords: object
) -> list[Call]:
    given = parameters
    if isinstance(parameters, dict):
        given = {
            name: values if isinstance(values, str) else parameter(name, values)  # type: ignore[misc]
            for name, values in parameters.items()
        }
    return [Call("load_param_into_net", (net, given, *arguments), keywords)]


_ZEROS: np.ndarray = np.zeros(3, np.float32)
_ROW: np.ndarray = np.arange(1, 4, dtype=np.float32)
_ONE_ARRAY = network(fc__weight=_ZEROS)

_NETWORKS = [
    ApiCase(
        "load_param_into_net: full names",
        _into_net(network(w=_ZEROS, b=_ZEROS, none=_ZEROS), {"b": _ROW, "w": _ROW + 1, "more": _ROW, "note": "text"}),
    ),
    ApiCase(
        "load_param_into_net: by suffix",
        _into_net(network(fc__weight=_ZEROS, fc__bias=_ZEROS), {"bb.fc.weight": _ROW, "bb.fc.bias": _ROW + 1}),
    ),
    ApiCase("load_param_into_net: by suffix without a dot", _into_net(_ONE_ARRAY, {"myfc.weight": _ROW})),
    ApiCase("load_param_into_net: strictly", _into_net(_ONE_ARRAY, {"bb.fc.weight": _ROW}, True)),
    ApiCase(
        "load_param_into_net: several prefixes",
        _into_net(
            network(a=_ZEROS, b=_ZEROS, c=_ZEROS, d=_ZEROS),
            {"x.a": _ROW, "y.b": _ROW + 1, "y.c": _ROW + 2, "x.c": _ROW + 3, "z.q": _ROW},
        ),
    ),
    ApiCase(
        "load_param_into_net: the first missing name is no prefix",
        _into_net(network(a=_ZEROS, b=_ZEROS), {"aa": _ROW, "xb": _ROW + 1}),
    ),
    ApiCase(
        "load_param_into_net: some by suffix",
        _into_net(network(b=_ZEROS, a=_ZEROS), {"pb": _ROW, "pa": _ROW + 1, "a": _ROW + 2}),
    ),
    ApiCase(
        "load_param_into_net: gradient accumulators",
        _into_net(network(a=_ZEROS, accu_grads__a=_ZEROS), {"a": _ROW, "x.accu_grads.a": _ROW}),
    ),
    ApiCase("load_param_into_net: a text", _into_net(network(a=_ZEROS), {"a": "text"})),
    ApiCase(
        "load_param_into_net: a text among suffixes",
        _into_net(network(a=_ZEROS), {"x.a": "text", "y.a": _ROW}),
        differs="MindSpore raises an AttributeError",
    ),
    ApiCase(
        "load_param_into_net: another floating-point dtype by suffix",
        _into_net(network(a=_ZEROS.astype(np.float16)), {"x.a": _ROW}),
    ),
    ApiCase(
        "load_param_into_net: a dtype that does not fit", _into_net(network(a=_ZEROS), {"x.a": _ROW.astype(np.int32)})
    ),
    ApiCase("load_param_into_net: a shape that does not fit", _into_net(network(a=_ZEROS), {"x.a": _ROW[:2]})),
    ApiCase("load_param_into_net: network is none", _into_net(5, {})),
    ApiCase("load_param_into_net: parameters are no dict", _into_net(_ONE_ARRAY, [1])),
    ApiCase("load_param_into_net: strict_load is no bool", _into_net(_ONE_ARRAY, {"a": _ROW}, "x")),
    ApiCase("load_param_into_net: remove_redundancy", _into_net(_ONE_ARRAY, {"a": _ROW}, remove_redundancy=True)),
    ApiCase(
        "load_param_into_net: remove_redundancy is no bool", _into_net(_ONE_ARRAY, {"a": _ROW}, remove_redundancy=1)
    ),
    ApiCase(
        "load_checkpoint: a network by suffix", _load("a.ckpt", _ONE_ARRAY), _ckpt("a.ckpt", **{"net.fc.weight": _ROW})
    ),
    ApiCase(
        "load_checkpoint: a network strictly",
        _load("a.ckpt", _ONE_ARRAY, True),
        _ckpt("a.ckpt", **{"net.fc.weight": _ROW}),
    ),
    ApiCase(
        "load_segmented_checkpoints: a network by suffix",
        _segments("parts", network(a=_ZEROS, b=_ZEROS)),
        _all(_ckpt("parts/0.ckpt", **{"x.a": _ROW}), _ckpt("parts/1.ckpt", **{"x.b": _ROW + 1})),
        agrees=lambda ours, theirs: ours[1] == theirs[1],
    ),
    ApiCase("load_checkpoint: choice_func is none", _load("a.ckpt", choice_func=5), _TWO),
    ApiCase(
        "load_checkpoint: choice_func is none, prefixes decide",
        _load("a.ckpt", choice_func=5, specify_prefix="conv"),
        _TWO,
    ),
    ApiCase(
        "load_checkpoint: choice_func is none, .safetensors",
        _load("a.safetensors", choice_func=5, format="safetensors"),
        _safetensors(),
    ),
    ApiCase(
        "load_checkpoint: choice_func raises",
        _load("a.ckpt", choice_func=function("lambda name: {}[name]")),
        _TWO,
    ),
    ApiCase("load_segmented_checkpoints: choice_func is none", _segments("parts", choice_func=5), _PARTS),
]


# what scripts begin with: no more than this, since MindSpore's context is that of all cases

_CONTEXT = [
    ApiCase(
        "set_context: what scripts begin with",
        [
            Call("set_context", (), {"mode": 1, "device_target": "CPU", "device_id": 0}),
            *(Call("get_context", (key,)) for key in ("mode", "device_target", "device_id")),
            Call("set_device", ("CPU",)),
            Call(
                "set_auto_parallel_context", (), {"parallel_mode": "semi_auto_parallel", "strategy_ckpt_load_file": "a"}
            ),
            *(Call("get_auto_parallel_context", (key,)) for key in ("parallel_mode", "strategy_ckpt_load_file")),
            Call("reset_auto_parallel_context"),
            *(
                Call("get_auto_parallel_context", (key,))
                for key in (
                    *("device_num", "global_rank", "parallel_mode", "pipeline_stages", "full_batch"),
                    *("enable_parallel_optimizer", "strategy_ckpt_load_file", "strategy_ckpt_save_file"),
                )
            ),
        ],
    ),
    ApiCase(
        "set_seed: seeds, and what is none",
        [
            *(Call("set_seed", (seed,)) for seed in (0, 2**32 - 1, "1", None, True, 1.5, -1, 2**32)),
            Call("get_seed"),
        ],
    ),
    ApiCase(
        "sync_pipeline_shared_parameters: what is no network",
        [Call("sync_pipeline_shared_parameters", (wrong,)) for wrong in (None, 5, "net", [1])],
    ),
]


# ckpt_to_safetensors and safetensors_to_ckpt


def _to_safetensors(*arguments: object, **keywords: object) -> list[Call]:
    return [Call("ckpt_to_safetensors", arguments, keywords)]


_RANKS = _all(
    *(_ckpt(f"in/{folder}/{name}.ckpt", w=_FLOATS) for folder in ("rank_0", "rank_1") for name in ("a-1_1", "b")),
    _file("in/rank_0/notes.txt", b"x"),
    _ckpt("in/other/a.ckpt"),
)

_CONVERTED = [
    ApiCase("ckpt_to_safetensors: a file", _to_safetensors("a.ckpt"), _TWO),
    ApiCase("ckpt_to_safetensors: bfloat16", _to_safetensors("a.ckpt"), _ckpt(b=_BRAIN, w=_FLOATS)),
    ApiCase("ckpt_to_safetensors: into a directory", _to_safetensors("a.ckpt", "out/new"), _TWO),
    ApiCase(
        "ckpt_to_safetensors: renamed",
        _to_safetensors("a.ckpt", name_map={"conv1.w": "first", "nobody": "x"}),
        _TWO,
    ),
    ApiCase("ckpt_to_safetensors: a directory", _to_safetensors("in"), _RANKS),
    ApiCase("ckpt_to_safetensors: a directory into another", _to_safetensors("in", "out", processes_num=2), _RANKS),
    ApiCase("ckpt_to_safetensors: some files", _to_safetensors("in", file_name_regex=r"-\d+_\d+"), _RANKS),
    ApiCase("ckpt_to_safetensors: a file that fits", _to_safetensors("a.ckpt", file_name_regex="^a"), _ckpt()),
    ApiCase("ckpt_to_safetensors: a file that does not fit", _to_safetensors("a.ckpt", file_name_regex="b"), _ckpt()),
    ApiCase("ckpt_to_safetensors: no such file", _to_safetensors("a.ckpt")),
    ApiCase("ckpt_to_safetensors: of another format", _to_safetensors("a.safetensors"), _safetensors()),
    ApiCase("ckpt_to_safetensors: target with an ending", _to_safetensors("a.ckpt", "out.x"), _ckpt()),
    ApiCase("ckpt_to_safetensors: name_map is no dict", _to_safetensors("a.ckpt", name_map=5), _ckpt()),
    ApiCase("ckpt_to_safetensors: no rank folders", _to_safetensors("in"), _ckpt("in/a.ckpt")),
    ApiCase("ckpt_to_safetensors: no processes", _to_safetensors("in", processes_num=0), _RANKS),
    ApiCase("ckpt_to_safetensors: path is no string", _to_safetensors(5)),
    ApiCase(
        "ckpt_to_safetensors: encrypted",
        _to_safetensors("encrypted_AES-GCM.ckpt"),
        _fixture("formats/encrypted_AES-GCM.ckpt"),
    ),
    ApiCase(
        "ckpt_to_safetensors: texts",
        _to_safetensors("plain.ckpt"),
        _fixture("formats/plain.ckpt"),
        differs="MindSpore cannot convert them",
    ),
    ApiCase(
        "ckpt_to_safetensors: two of one name",
        _to_safetensors("a.ckpt", name_map={"conv1.w": "conv2.w"}),
        _TWO,
        differs="MindSpore keeps one of them",
        ours="ValueError",
    ),
    ApiCase(
        "ckpt_to_safetensors: no file fits",
        _to_safetensors("in", file_name_regex="nothing"),
        _RANKS,
        differs="MindSpore does nothing",
        ours="ValueError",
    ),
    ApiCase("safetensors_to_ckpt: a file", [Call("safetensors_to_ckpt", ("a.safetensors",))], _safetensors(b=_FLOATS)),
    ApiCase(
        "safetensors_to_ckpt: all dtypes",
        [Call("safetensors_to_ckpt", ("plain.safetensors", "out"))],
        _fixture("formats/plain.safetensors"),
    ),
    ApiCase(
        "safetensors_to_ckpt: a directory",
        [Call("safetensors_to_ckpt", ("in",), {"name_map": {"w": "v"}})],
        _all(_safetensors("in/rank_0/a.safetensors"), _safetensors("in/rank1/b.safetensors")),
    ),
    ApiCase("safetensors_to_ckpt: of another format", [Call("safetensors_to_ckpt", ("a.ckpt",))], _ckpt()),
    ApiCase("safetensors_to_ckpt: no rank folders", [Call("safetensors_to_ckpt", ("in",))], _folder("in")),
]


# strategies and slices

_ROWS = FileLayout((2,), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(2, 3))
_COLUMNS = replace(_ROWS, tensor_map=((), (0,)))
_BLOCKS = replace(_ROWS, device_matrix=(2, 2), tensor_map=((1,), (0,)))
_REPEATED = replace(_ROWS, device_matrix=(2, 2), tensor_map=((1,), ()))
_SHARDED = replace(_REPEATED, optimizer_step=1, optimizer_size=2)


def _strategy(layout: FileLayout, name: str = "s.ckpt", parameter_name: str = "w") -> Files:
    return lambda directory: write_strategy_file(directory / name, {0: {parameter_name: layout}})


def _merge(slices: object, *arguments: object) -> list[Call]:
    return [Call("merge_sliced_parameter", (slices, *arguments))]


def _slices(*shapes: tuple[int, ...], name: str = "w") -> list[dict[str, object]]:
    return [
        parameter(name, 100 * number + np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
        for number, shape in enumerate(shapes)
    ]


_MERGED = [
    ApiCase("merge_sliced_parameter: without a strategy", _merge(_slices((2, 3), (1, 3)))),
    ApiCase("merge_sliced_parameter: rows", _merge(_slices((1, 3), (1, 3)), strategy("s.ckpt")), _strategy(_ROWS)),
    ApiCase(
        "merge_sliced_parameter: columns", _merge(_slices((2, 1), (2, 1)), strategy("s.ckpt")), _strategy(_COLUMNS)
    ),
    ApiCase("merge_sliced_parameter: blocks", _merge(_slices(*[(2, 3)] * 4), strategy("s.ckpt")), _strategy(_BLOCKS)),
    ApiCase(
        "merge_sliced_parameter: repeated", _merge(_slices(*[(2, 3)] * 4), strategy("s.ckpt")), _strategy(_REPEATED)
    ),
    ApiCase(
        "merge_sliced_parameter: JSON", _merge(_slices((1, 3), (1, 3)), strategy("s.json")), _strategy(_ROWS, "s.json")
    ),
    ApiCase(
        "merge_sliced_parameter: optimizer shards",
        _merge(_slices(*[(1, 3)] * 4), strategy("s.ckpt")),
        _strategy(_SHARDED),
        differs="MindSpore passes over them",
    ),
    ApiCase(
        "merge_sliced_parameter: bfloat16",
        _merge([parameter("w", _BRAIN), parameter("w", _BRAIN)]),
        differs="MindSpore makes float32 of it",
    ),
    ApiCase("merge_sliced_parameter: no list", _merge(5)),
    ApiCase("merge_sliced_parameter: nothing", _merge([])),
    ApiCase("merge_sliced_parameter: no parameters", _merge([5])),
    ApiCase("merge_sliced_parameter: one is none", _merge([*_slices((2,)), 5])),
    ApiCase("merge_sliced_parameter: other axes", _merge(_slices((1, 1), (1, 2)))),
    ApiCase("merge_sliced_parameter: scalars", _merge(_slices((), ()))),
    ApiCase("merge_sliced_parameter: strategy is no dict", _merge(_slices((2,)), [1])),
    ApiCase("merge_sliced_parameter: layout is none", _merge(_slices((2,)), {"w": 5})),
    ApiCase("merge_sliced_parameter: too few", _merge(_slices((1, 3)), strategy("s.ckpt")), _strategy(_ROWS)),
    ApiCase(
        "merge_sliced_parameter: unlike ones", _merge(_slices((1, 3), (2, 3)), strategy("s.ckpt")), _strategy(_ROWS)
    ),
]


def _build(*arguments: object) -> list[Call]:
    return [Call("build_searched_strategy", arguments)]


_STRATEGIES = [
    *(
        ApiCase(
            f"build_searched_strategy: {case}",
            _build("dst_strategy.ckpt"),
            _fixture(f"conversions/{case}/dst_strategy.ckpt"),
        )
        for case in ("case_7001", "case_7005", "case_7012")
    ),
    ApiCase("build_searched_strategy: JSON", _build("s.json"), _strategy(_SHARDED, "s.json")),
    ApiCase("build_searched_strategy: none", _build(None)),
    ApiCase("build_searched_strategy: no string", _build(5)),
    ApiCase("build_searched_strategy: no such file", _build("s.ckpt")),
    ApiCase("build_searched_strategy: a directory", _build("s"), _folder("s")),
    ApiCase("build_searched_strategy: empty", _build("s.ckpt"), _file("s.ckpt", b"")),
    ApiCase("build_searched_strategy: damaged JSON", _build("s.json"), _file("s.json", b"{")),
    ApiCase(
        "build_searched_strategy: damaged",
        _build("s.ckpt"),
        _file("s.ckpt", b"\xff\xff\xff"),
        differs="documented as a ValueError",
        ours="ValueError",
    ),
    ApiCase(
        "build_searched_strategy: no layouts",
        _build("s.json"),
        _file("s.json", b"{}"),
        differs="MindSpore returns an empty dict",
        ours="ValueError",
    ),
]


def _path(*arguments: object) -> list[Call]:
    return [Call("get_ckpt_path_with_strategy", arguments)]


# without a launcher MindSpore is rank 0
_PATHS = [
    ApiCase(
        "get_ckpt_path_with_strategy: its own",
        _path("rank_0/a.ckpt", "s.ckpt"),
        _all(_strategy(_REPEATED), _ckpt("rank_0/a.ckpt"), _ckpt("rank_1/a.ckpt")),
    ),
    ApiCase(
        "get_ckpt_path_with_strategy: another's",
        _path("x/rank_0/a.ckpt", "s.ckpt"),
        _all(_strategy(_REPEATED), _ckpt("x/rank_1/a.ckpt"), _ckpt("x/rank_2/a.ckpt")),
    ),
    ApiCase(
        "get_ckpt_path_with_strategy: nobody's",
        _path("rank_0/a.ckpt", "s.ckpt"),
        _all(_strategy(_BLOCKS), _ckpt("rank_1/a.ckpt")),
    ),
    ApiCase(
        "get_ckpt_path_with_strategy: optimizer shards",
        _path("rank_0/a.ckpt", "s.ckpt"),
        _all(_strategy(_SHARDED), _ckpt("rank_1/a.ckpt")),
    ),
    ApiCase(
        "get_ckpt_path_with_strategy: no rank in it", _path("a.ckpt", "s.ckpt"), _all(_strategy(_REPEATED), _ckpt())
    ),
    ApiCase("get_ckpt_path_with_strategy: no rank and no file", _path("a.ckpt", "s.ckpt"), _strategy(_REPEATED)),
    ApiCase(
        "get_ckpt_path_with_strategy: several ranks in it",
        _path("job_rank_1/rank_0/a.ckpt", "s.ckpt"),
        _all(_strategy(_REPEATED), _ckpt("job_rank_1/rank_1/a.ckpt")),
        differs="which is this process's cannot be known; MindSpore replaces all",
        ours="ValueError",
    ),
    ApiCase("get_ckpt_path_with_strategy: no string", _path(5, "s.ckpt"), _strategy(_REPEATED)),
    ApiCase(
        "get_ckpt_path_with_strategy: no such strategy",
        _path("rank_0/a.ckpt", "s.ckpt"),
        differs="MindSpore raises a FileNotFoundError",
        ours="ValueError",
    ),
]


# load_distributed_checkpoint


def _distributed(*arguments: object, **keywords: object) -> list[Call]:
    return [Call("load_distributed_checkpoint", arguments, {"format": "safetensors"} | keywords)]


def _unified(**arrays: np.ndarray) -> Files:
    return _safetensors("whole/part0.safetensors", **arrays)


_WHOLE = np.arange(48, dtype=np.float32).reshape(4, 12)
_ONE_FILE = _all(
    _unified(w=_WHOLE),
    *(
        _strategy(layout, f"{name}.ckpt")
        for name, layout in (
            ("rows", _ROWS),
            ("columns", _COLUMNS),
            ("blocks", _BLOCKS),
            ("sharded", _SHARDED),
        )
    ),
)
_SEVERAL = _all(
    _ONE_FILE,
    _safetensors("whole/part1.safetensors", v=_WHOLE),
    _safetensors("whole/hyper_param.safetensors", step=np.array([7], np.int32)),
    _file(
        "whole/param_name_map.json",
        b'{"metadata": {}, "weight_map": {"w": "part0.safetensors", "v": "part1.safetensors"}}',
    ),
)
_HERE = {"unified_safetensors_dir": "whole", "dst_safetensors_dir": "out"}

_DISTRIBUTED = [
    *(
        ApiCase(
            f"load_distributed_checkpoint: {name}",
            _distributed(None, predict_strategy=f"{name}.ckpt", **_HERE),
            _ONE_FILE,
        )
        for name in ("rows", "columns", "blocks", "sharded")
    ),
    ApiCase(
        "load_distributed_checkpoint: a rank",
        _distributed(None, predict_strategy="blocks.ckpt", rank_id=3, **_HERE),
        _ONE_FILE,
    ),
    ApiCase(
        "load_distributed_checkpoint: as .ckpt",
        _distributed(None, predict_strategy="rows.ckpt", output_format="ckpt", max_process_num=1, **_HERE),
        _ONE_FILE,
    ),
    ApiCase("load_distributed_checkpoint: whole", _distributed(None, **_HERE), _SEVERAL),
    ApiCase(
        "load_distributed_checkpoint: several files",
        _distributed(None, predict_strategy="rows.ckpt", rank_id=1, **_HERE),
        _SEVERAL,
    ),
    ApiCase(
        "load_distributed_checkpoint: layouts",
        _distributed(None, predict_strategy=strategy("blocks.ckpt"), rank_id=2, **_HERE),
        _ONE_FILE,
    ),
    ApiCase(
        "load_distributed_checkpoint: renamed",
        _distributed(None, predict_strategy="s.ckpt", rank_id=1, name_map={"model.w": "w"}, **_HERE),
        _all(_unified(w=_WHOLE), _strategy(_ROWS, parameter_name="model.w")),
    ),
    ApiCase(
        "load_distributed_checkpoint: one stage of MindSpore's",
        _distributed(None, predict_strategy="dst_strategy.ckpt", rank_id=1, **_HERE),
        _all(
            _unified(**{"layers.0.weight_0": np.arange(96 * 24, dtype=np.float32).reshape(96, 24)}),
            _fixture("conversions/case_7001/dst_strategy.ckpt"),
        ),
    ),
    ApiCase("load_distributed_checkpoint: no source", _distributed(None), _ONE_FILE),
    ApiCase("load_distributed_checkpoint: no target", _distributed(None, unified_safetensors_dir="whole"), _ONE_FILE),
    ApiCase("load_distributed_checkpoint: unknown format", _distributed(None, format="npz")),
    ApiCase("load_distributed_checkpoint: unknown output format", _distributed(None, output_format="npz")),
    ApiCase("load_distributed_checkpoint: files of ranks", _distributed(None, ["a.ckpt"], **_HERE), _ONE_FILE),
    ApiCase("load_distributed_checkpoint: strict", _distributed(None, strict_load=True, **_HERE), _ONE_FILE),
    ApiCase("load_distributed_checkpoint: a key", _distributed(None, dec_key=_KEY, **_HERE), _ONE_FILE),
    ApiCase(
        "load_distributed_checkpoint: a training strategy",
        _distributed(None, train_strategy_filename="rows.ckpt", **_HERE),
        _ONE_FILE,
    ),
    ApiCase(
        "load_distributed_checkpoint: no map",
        _distributed(None, **_HERE),
        _all(_ONE_FILE, _safetensors("whole/part1.safetensors", v=_WHOLE)),
    ),
    ApiCase("load_distributed_checkpoint: empty source", _distributed(None, **_HERE), _folder("whole")),
    ApiCase(
        "load_distributed_checkpoint: strategy is no string",
        _distributed(None, predict_strategy=5, **_HERE),
        _ONE_FILE,
    ),
    ApiCase(
        "load_distributed_checkpoint: no such strategy",
        _distributed(None, predict_strategy="no.ckpt", **_HERE),
        _ONE_FILE,
    ),
    ApiCase(
        "load_distributed_checkpoint: rank is no int",
        _distributed(None, predict_strategy="rows.ckpt", rank_id="1", **_HERE),
        _ONE_FILE,
    ),
    ApiCase(
        "load_distributed_checkpoint: no such rank",
        _distributed(None, predict_strategy="blocks.ckpt", rank_id=9, **_HERE),
        _ONE_FILE,
        differs="MindSpore does not look, or raises an IndexError",
        ours="ValueError",
    ),
    ApiCase(
        "load_distributed_checkpoint: target is a file",
        _distributed(None, **_HERE),
        _all(_ONE_FILE, _file("out", b"")),
    ),
    ApiCase(
        "load_distributed_checkpoint: no such source",
        _distributed(None, **_HERE),
        differs="MindSpore raises a FileNotFoundError",
        ours="ValueError",
    ),
    ApiCase(
        "load_distributed_checkpoint: .ckpt without a network",
        _distributed(None, ["a.ckpt"], train_strategy_filename="rows.ckpt", format="ckpt"),
        _all(_ONE_FILE, _ckpt()),
        differs="documented as a TypeError",
        ours="TypeError",
    ),
]

CASES = [
    *(*_LOADS, *_SAVES, *_SEGMENTED, *_NETWORKS, *_CONTEXT),
    *(*_CONVERTED, *_MERGED, *_STRATEGIES, *_PATHS, *_DISTRIBUTED),
]
