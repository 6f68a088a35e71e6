"""Lays out the files of a universal checkpoint, as torch.save writes them."""

import struct
from collections.abc import Sequence

from reshard.core.files.model import FilePlan, OutputEntry
from reshard.core.files.torch_file_writing import TensorPlace, TensorValue, plan_torch_file
from reshard.core.layouts.universal.names import MODEL_NAMES, OPTIMIZER_NAME, archive_name, parse_state
from reshard.core.layouts.universal.target import UniversalTarget
from reshard.core.layouts.universal.training import LOSS_SCALER, NUMBERS, groups_of, shared_settings, taken_over
from reshard.core.plan.model import ParameterMatch
from reshard.core.tensor.dtypes import dtype_from_name

_VERSION = "0.19.8"
"""The version of DeepSpeed whose files these are like."""


def plan_universal_file(
    target: UniversalTarget, rank: int, match: ParameterMatch, entries: Sequence[OutputEntry]
) -> FilePlan:
    """Lay out a file, which holds `entries`.

    Raises:
        CheckpointError: torch has no dtype of an entry's.
    """
    path = match.files.names[rank]
    if path in MODEL_NAMES:
        root: object = _model_state(target, entries)
    elif path == OPTIMIZER_NAME:
        root = _optimizer_state(target, match)
    elif entries:
        [entry] = entries
        root = {"param": TensorPlace(entry.name)}
    else:
        root = _step(target)
    return plan_torch_file(root, entries, archive_name(path))


def _model_state(target: UniversalTarget, entries: Sequence[OutputEntry]) -> dict[str, object]:
    return {
        "module": {entry.name: TensorPlace(entry.name) for entry in entries},
        "buffer_names": [entry.name for entry in entries],
        "optimizer": None,
        "global_steps": target.iteration,
        "skipped_steps": 0,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_version": _VERSION,
        **{key: value for key, value in taken_over(target.training).items() if key in NUMBERS},
    }


def _optimizer_state(target: UniversalTarget, match: ParameterMatch) -> dict[str, object]:
    """The settings of the source's training, or settings that leave those of the next one as they are.

    Every group of an optimizer has at least one parameter, so there are not more groups than weights. For ZeRO 3 there
    is one that counts for all groups. The step is a number there, or all parts of the optimizer would count in one
    tensor.
    """
    names = [each.name for each in match.resharded]
    known = groups_of(target.training)
    groups: list[object] = [*known, *[{}] * (sum(not parse_state(name)[0] for name in names) - len(known))]
    state: dict[str, object] = {"ds_version": _VERSION, "param_groups": groups}
    if scaler := taken_over(target.training).get(LOSS_SCALER):
        state |= {LOSS_SCALER: scaler, "dynamic_loss_scale": True}
    if any(parse_state(name)[0] for name in names):
        state["optimizer_state_dict"] = {
            "state": {0: {"step": target.optimizer_step}},
            "param_groups": [shared_settings(known)],
        }
    return state


def _step(target: UniversalTarget) -> TensorValue:
    return TensorValue(dtype_from_name("Float32"), (), struct.pack("<f", target.optimizer_step))
