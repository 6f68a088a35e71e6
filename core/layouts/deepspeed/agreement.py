"""Checks that files are of one save: what each says of the training, against the others and the files' names."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from reshard.core.layouts.deepspeed.model_file import ModelFile
from reshard.core.layouts.deepspeed.optimizer_file import OptimizerFile
from reshard.core.runtime.wording import counted, shortened

_STAGE3 = 3
_File = TypeVar("_File", ModelFile, OptimizerFile)


def agreement_problems(
    models: Sequence[ModelFile], optimizers: Sequence[OptimizerFile], *, is_partitioned: bool
) -> list[str]:
    """Return how files contradict each other or their names, in sentences."""
    first = models[0]
    problems = [
        *_differing(models, "ds_version", lambda model: model.version),
        *_differing(models, "global_steps", lambda model: model.steps),
        *_differing(models, "dp_world_size", lambda model: model.world_size),
        *_differing(models, "param_shapes", lambda model: _in_order(model.groups or ())),
        *_differing(models, "frozen_param_shapes", lambda model: _in_order([model.frozen or {}])),
    ]
    if not optimizers:
        if first.groups is not None:
            problems.append(f"{first.file.path} is of a training with ZeRO: the files …_optim_states.pt are missing")
        return problems
    if first.groups is None:
        problems.append(f"{first.file.path} has no param_shapes, which say whose the partitions of the optimizer are")
    problems += _version_problems(first, optimizers)
    for file in optimizers:
        problems += _count_problems(first, file, len(optimizers))
        problems += _stage_problems(file, is_partitioned=is_partitioned)
    problems += _differing(optimizers, "zero_stage", lambda file: file.stage)
    problems += _differing(optimizers, "groups", lambda file: len(file.groups))
    problems += _differing(optimizers, "dtypes", lambda file: [group.master.dtype.name for group in file.groups])
    problems += _differing(optimizers, "the optimizer's step", lambda file: tuple(group.step for group in file.groups))
    return problems


def _differing(files: Sequence[_File], what: str, value_of: Callable[[_File], object]) -> list[str]:
    """The first file that says something else than the first one."""
    first = value_of(files[0])
    for file in files:
        value = value_of(file)
        if value != first:
            shown = f": {first}, {value}" if isinstance(first, str | int) and isinstance(value, str | int) else ""
            return [f"{files[0].file.path} and {file.file.path} differ in {what}{shortened(shown)}"]
    return []


def _in_order(groups: Sequence[object]) -> list[object]:
    """Dicts that are equal only if their order is."""
    return [list(group.items()) if isinstance(group, dict) else group for group in groups]


def _version_problems(model: ModelFile, optimizers: Sequence[OptimizerFile]) -> list[str]:
    for file in optimizers:
        if file.version != model.version:
            said = [each or "an unknown version" for each in (model.version, file.version)]
            return [f"{model.file.path} was saved by DeepSpeed {said[0]}, {file.file.path} by {said[1]}"]
    return []


def _count_problems(model: ModelFile, file: OptimizerFile, ranks: int) -> list[str]:
    if model.world_size != ranks:
        return [f"{model.file.path} is of {counted(model.world_size, 'rank')}, but there are files of {ranks}"]
    if any(count != ranks for count in file.partition_counts):
        shown = shortened(", ".join(map(str, file.partition_counts)))
        return [f"{file.file.path} is of groups divided among {shown} ranks, but there are files of {ranks}"]
    return []


def _stage_problems(file: OptimizerFile, *, is_partitioned: bool) -> list[str]:
    if is_partitioned and file.stage != _STAGE3:
        return [f"{file.file.path} is of stage {file.stage or 1}, but the names of the model's files are of stage 3"]
    if not is_partitioned and file.stage == _STAGE3:
        return [f"{file.file.path} is of stage 3, but the name of the model's file is of stage 1 or 2"]
    return []
