"""CRCs and appended information that reshard writes, judged by MindSpore."""

import struct
from pathlib import Path
from typing import Any

from reshard.core.changes.info_texts import InfoValue, format_info
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.conformance.checkpoint_config_rules import PROPERTIES, RULES, Rule, configured
from tests.conformance.mindspore_process import Judge
from tests.support.checkpoints import Contents, read_rank

MODEL: Contents = {
    "dense.weight": ("Float32", (2, 3), bytes(range(24))),
    "a": ("Int8", (5,), b"\xff\0\1\2\3"),
    "mask": ("Bool", (2,), b"\1\0"),
    "half": ("Float16", (1, 2), b"\0\x3c\0\xbc"),
    "global_step": ("Int32", (1,), b"\7\0\0\0"),
    "scalar": ("Int64", (), (77).to_bytes(8, "little")),
    "small": ("UInt8", (), b"\xc8"),
    "lr": ("Float32", (), struct.pack("<f", 0.5)),
}
INFO: dict[str, InfoValue] = {
    "epoch_num": 3,
    "step_num": 1875,
    "loss": 0.1,
    "small_loss": 5e-324,
    "done": False,
    "scalar": 78,
}
FOR_CKPT: dict[str, InfoValue] = {"below": -5, "many": 2**40, "most": 2**63, "note": "héllo 昇思", "empty": ""}
"""In `.safetensors` MindSpore has no CRC of numbers that are negative or large, and no texts."""


def check_crc_and_information(judge: Judge, directory: Path) -> list[str]:
    """What is not as it should be."""
    problems = []
    for format in ("ckpt", "safetensors"):
        problems += _check_format(judge, directory / format, format)
    for rule in RULES:
        problems += [
            f"CheckpointConfig({rule.positional}, {rule.given}): {problem}" for problem in _check_rule(judge, rule)
        ]
    return problems


def _check_format(judge: Judge, directory: Path, format: str) -> list[str]:
    info = INFO | (FOR_CKPT if format == "ckpt" else {})
    source = directory / "source" / f"net.{format}"
    judge.save({source: MODEL}, {})
    convert(
        build_request(
            source=str(source),
            target=str(directory / "out"),
            write_crc=True,
            append_info=[format_info(name, value) for name, value in info.items()],
        )
    )
    path = directory / "out" / "rank_0" / f"checkpoint_0.{format}"
    problems = []
    loaded = _load(judge, path)
    if "value" not in loaded:
        problems.append(f".{format}: MindSpore does not load it with crc_check: {loaded}")
    elif loaded["value"].keys() != MODEL.keys() | info.keys():
        problems.append(f".{format}: MindSpore loads {sorted(loaded['value'])}")
    problems += _check_information(judge, directory, info, format)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(MODEL["dense.weight"][2]) + 5] ^= 1
    path.chmod(0o600)
    path.write_bytes(damaged)
    if "error" not in _load(judge, path) or "value" not in _load(judge, path, crc_check=False):
        problems.append(f".{format}: MindSpore does not find a changed byte by the CRC, or not only by it")
    return problems


def _check_information(judge: Judge, directory: Path, info: dict[str, InfoValue], format: str) -> list[str]:
    """Compares it with that of a file which MindSpore saves with the same `append_dict`."""
    arguments = [{"w": {"$parameter": ("w", "Int8", (1,), b"\1")}}, f"mindspore.{format}"]
    answer = judge.call(directory, "save_checkpoint", repr((arguments, {"append_dict": info, "format": format})))
    if "error" in answer:
        return [f".{format}: MindSpore does not save {info}: {answer}"]
    (directory / "theirs" / "rank_0").mkdir(parents=True)
    (directory / f"mindspore.{format}").rename(directory / "theirs" / "rank_0" / f"mindspore.{format}")
    theirs, ours = (read_rank(directory / side, 0) for side in ("theirs", "out"))
    return [
        f".{format}: {name} is {ours.get(name)}, MindSpore saves {theirs.get(name)}"
        for name in info
        if ours.get(name) != theirs.get(name)
    ]


def _load(judge: Judge, path: Path, *, crc_check: bool = True) -> dict[str, Any]:
    arguments = repr(([path.name], {"format": path.suffix.removeprefix("."), "crc_check": crc_check}))
    return judge.call(path.parent, "load_checkpoint", arguments)


def _check_rule(judge: Judge, rule: Rule) -> list[str]:
    """Whether MindSpore does what the table says."""
    found = judge.configure(repr((rule.positional, rule.given)), PROPERTIES)
    if rule.refused:
        return [] if found.get("error") == rule.refused else [f"{found}, not a {rule.refused}"]
    want: dict[str, Any] = {"kept": rule.kept, "info": rule.info}
    properties = found.get("value", {}).pop("properties", {})
    lines = [] if found.get("value") == want else [f"{found}, not {want}"]
    if not rule.message and not rule.differs:
        config = configured(rule)
        ours = {name: getattr(config, name) for name in PROPERTIES} | {"policy": config.get_checkpoint_policy()}
        lines += [
            f"{name} is {ours.get(name)!r}, MindSpore's {value!r}"
            for name, value in properties.items()
            if value != ours.get(name)
        ]
    return lines
