"""`transform_checkpoints`, `transform_checkpoint_by_rank`, `rank_list_for_transform`, and 2.10's names for them."""

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
from msgspec.structs import replace

from reshard.core.conversion.convert import convert
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import CatalogError, InputError, PlanError, TargetBusyError
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.options import own_options
from reshard.core.layouts.ranks.checkpoint import FoundRanks
from reshard.core.layouts.ranks.options import RanksOptions
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.mindspore_api.arguments import FORMATS, check_type
from reshard.core.mindspore_api.failures import MissingDirectoryError, reading, writing
from reshard.core.mindspore_api.file_writing import PlannedFile, give_name, write_files
from reshard.core.mindspore_api.needed_ranks import check_rank, from_zero, needed_ranks
from reshard.core.mindspore_api.paths import checked_directory, make_directory, optional_strategy
from reshard.core.mindspore_api.planning import (
    Planned,
    absent_weights,
    build_checked_plan,
    catalog_given,
    catalog_ranks,
)
from reshard.core.mindspore_api.rank_files import survey_ranks
from reshard.core.options.validation import build_options
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.partial_stage import part_of_target
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.wording import listed, rank_names
from reshard.core.source.opening import wants_digest
from reshard.core.source.own_stage import of_own_stage
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.placement import check_apart
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import stages_beside
from reshard.core.strategy.model import Strategy
from reshard.core.verification.tied_parameters import with_tied_compared

_WORK_DIRECTORY = ".reshard-transform"
"""Parts have one each, `.reshard-transform_part0`: processes may convert a stage each into one directory."""
_ARGUMENTS = {"prefix": "ckpt_prefix", "workers": "process_num"}
"""Fields of a request -> the arguments that set them."""


def transform_checkpoints(
    src_checkpoints_dir: str,
    dst_checkpoints_dir: str,
    ckpt_prefix: str,
    src_strategy_file: str | None = None,
    dst_strategy_file: str | None = None,
    process_num: int = 1,
    output_format: str = "ckpt",
) -> None:
    """Convert a checkpoint from one strategy to another, into `rank_N/{ckpt_prefix}N.{output_format}`.

    With one pipeline stage's strategy as the source's, whose parameters are a part of the target's, the files are
    `rank_N/{ckpt_prefix}N_part{stage}.ckpt`, which `load_segmented_checkpoints` reads.

    Raises:
        TypeError: a path, a strategy file's name or the prefix is not a string.
        NotADirectoryError: the destination is a file; or the source is not a directory, which is a ValueError as well.
        ValueError: the source has no files, files of both kinds, or lacks some; a strategy cannot be used, or is one
            stage's own; source, target and options do not fit together.
        OSError: the destination cannot be written.
    """
    found = _surveyed(src_checkpoints_dir)
    directory = checked_directory("dst_checkpoints_dir", dst_checkpoints_dir)
    check_type("ckpt_prefix", ckpt_prefix, str)
    if not ckpt_prefix.strip() and found.formats == (CheckpointFormat.CKPT,):
        raise ValueError("'ckpt_prefix' is blank")
    if output_format not in FORMATS:
        raise ValueError(f"'output_format' has to be one of {', '.join(FORMATS)}, not {output_format!r}")
    source = optional_strategy("src_strategy_file", src_strategy_file)
    target = from_zero(optional_strategy("dst_strategy_file", dst_strategy_file))
    if source is not None:
        source = _as_part(source, target)
    with reading():
        request = build_options(
            ConversionRequest,
            lambda field: repr(_ARGUMENTS.get(field, field)),
            source=os.path.abspath(src_checkpoints_dir),
            target=_working_directory(directory, part_of_target(source, target)),
            format=output_format,
            prefix=ckpt_prefix,
            workers=process_num,
            overwrite=True,
        )
    planned = cache(lambda: _plan_of_all(request, found, source, target))
    with writing():
        report = _converted(request, directory, lambda: planned().plan)
    _give_names(report, directory)
    for text in planned().warnings:
        warnings.warn(text, stacklevel=2)


def transform_checkpoint_by_rank(
    rank_id: int,
    checkpoint_files_map: Mapping[int, str],
    save_checkpoint_file_name: str,
    src_strategy_file: str | None = None,
    dst_strategy_file: str | None = None,
) -> None:
    """Write one target rank's file from the source ranks' files it needs; see `rank_list_for_transform`.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the name does not end in `.ckpt`; a file that is needed is missing or cannot be used; a strategy
            cannot be used; source and target do not fit together.
        OSError: the file cannot be written.
    """
    check_type("checkpoint_files_map", checkpoint_files_map, dict)
    _check_rank_id(rank_id)
    check_type("save_checkpoint_file_name", save_checkpoint_file_name, str)
    if not save_checkpoint_file_name.endswith(".ckpt"):
        raise ValueError(f"'save_checkpoint_file_name' has to end in .ckpt: {save_checkpoint_file_name}")
    _check_files(checkpoint_files_map)
    given = optional_strategy("src_strategy_file", src_strategy_file)
    target = from_zero(optional_strategy("dst_strategy_file", dst_strategy_file))
    with reading():
        check_rank(target, rank_id, given)
        planned = _plan_of_rank(rank_id, checkpoint_files_map, from_zero(given), target)
    directory, name = os.path.split(os.path.abspath(save_checkpoint_file_name))
    with writing():
        write_files([PlannedFile(planned.plan, rank_id if target else 0, name)], parse_url(directory), workers=1)
    for text in (*planned.warnings, *_own_stage_warning(given, target)):
        warnings.warn(text, stacklevel=2)


def rank_list_for_transform(
    rank_id: int, src_strategy_file: str | None = None, dst_strategy_file: str | None = None
) -> list[int]:
    """Return the source ranks whose files a target rank is made from, in descending order.

    Raises:
        TypeError: `rank_id` is not an int, or a strategy file's name is not a string.
        ValueError: a strategy cannot be used, or the target has no such rank.
    """
    _check_rank_id(rank_id)
    source = from_zero(optional_strategy("src_strategy_file", src_strategy_file))
    if source is None:
        return [0]
    target = from_zero(optional_strategy("dst_strategy_file", dst_strategy_file))
    with reading():
        return sorted(needed_ranks(source, target, rank_id), reverse=True)


convert_checkpoints = transform_checkpoints
convert_checkpoint_by_rank = transform_checkpoint_by_rank
rank_list_for_convert = rank_list_for_transform


def _check_files(files: Mapping[Any, Any]) -> None:
    for rank, path in files.items():
        if not isinstance(rank, int | np.integer):
            raise TypeError(f"'checkpoint_files_map' has to have ranks for keys, not {rank!r}")
        if not isinstance(path, str) or not os.path.isfile(path):
            raise ValueError(f"'checkpoint_files_map' names no file for rank {rank}: {path}")


def _check_rank_id(rank_id: object) -> None:
    if not isinstance(rank_id, int):
        raise TypeError(f"'rank_id' has to be an int, not {rank_id!r}")


def _surveyed(directory: str) -> FoundRanks:
    """Survey a directory's rank folders, or a `.safetensors` file; all files must be of one kind."""
    check_type("src_checkpoints_dir", directory, str)
    if not os.path.isdir(directory) and not (os.path.isfile(directory) and directory.endswith(".safetensors")):
        raise MissingDirectoryError(f"'src_checkpoints_dir' is not a directory: {directory}")
    with reading():
        found = survey_ranks(directory)
    if len(found.formats) > 1:
        raise ValueError(f"'src_checkpoints_dir' holds both .ckpt and .safetensors files: {directory}")
    if not found.formats:
        raise ValueError(f"'src_checkpoints_dir' has no rank folders with checkpoint files: {directory}")
    return found


def _as_part(source: Strategy, target: Strategy | None) -> Strategy:
    """The source as a stage's own if it is a part of the target's network; MindSpore ignores whether it was merged."""
    own = replace(source, merged=False) if len(source.stages) == 1 else source
    return own if part_of_target(own, target) is not None else source


def _working_directory(directory: str, part: int | None) -> str:
    """Return the directory of unfinished files in the destination, which must not be a checkpoint of reshard."""
    if os.path.exists(os.path.join(directory, STATE_DIRECTORY)):
        raise ValueError(
            f"{directory}: is a checkpoint that reshard converted, or is converting; name another directory"
        )
    work = os.path.join(directory, _WORK_DIRECTORY if part is None else f"{_WORK_DIRECTORY}_part{part}")
    if os.path.islink(work):
        raise ValueError(f"{work}: is a link, whose target would be replaced; remove it")
    return work


def _converted(request: ConversionRequest, directory: str, plan: Callable[[], ConversionPlan]) -> ConversionReport:
    """Convert into the working directory; the destination is made when it is known that there is something for it."""

    def plan_of(_: ConversionRequest) -> ConversionPlan:
        found = plan()
        with mapped_errors(parse_url(directory), "make the directory"):
            make_directory(directory)
        return found

    try:
        return convert(request, plan_of=plan_of)
    except TargetBusyError as error:
        raise InputError(f"{directory}: another process is converting into it; wait for it") from error


def _give_names(report: ConversionReport, directory: str) -> None:
    """Move the finished files to their final paths, replacing files of the same names."""
    work = parse_url(report.target).path
    for rank in report.ranks:
        give_name(os.path.join(work, rank.file), os.path.join(directory, rank.file))
    shutil.rmtree(work)


def _plan_of_all(
    request: ConversionRequest, found: FoundRanks, source: Strategy | None, target: Strategy | None
) -> Planned:
    final = parse_url(request.target)
    check_apart(parse_url(request.source), final)
    cataloged = catalog_ranks(found, source, target, workers=request.worker_count)
    catalog, noted = cataloged.catalog, cataloged.warnings
    for record in catalog.records.values():
        check_apart(parse_url(record.location), final)  # a link may lead into the destination
    if source is not None and not source.merged:
        catalog = of_own_stage(source, catalog, found)
        _check_not_half_a_model(found, source, target, absent_weights(catalog, source, target))
        noted = (*noted, *_stages_beside_warning(source, target))
    prefix = own_options(request, RanksOptions).prefix
    planned = build_checked_plan(
        PlanInputs(catalog, source, target, CheckpointFormat(request.format.value), layout=RankFolders(prefix))
    )
    lacking = _lacking_part_warning(found, source, planned.plan)
    return Planned(with_tied_compared(planned.plan, False), (*noted, *planned.warnings, *lacking))


def _lacking_part_warning(found: FoundRanks, source: Strategy | None, plan: ConversionPlan) -> tuple[str, ...]:
    """A warning if a part of the target's network lacks parameters and the source has no other stages."""
    if plan.part is None or source is None or not set(found.ranks) <= set(source.ranks):
        return ()
    lacking = listed(sorted(plan.match.elsewhere))
    text = (
        f"left out, because no source file holds them, though the target's strategy has them: {lacking}. The files are "
        f"named _part{plan.part}, as one stage's of several"
    )
    return (text,)


def _check_not_half_a_model(
    found: FoundRanks, source: Strategy, target: Strategy | None, absent: Iterable[str]
) -> None:
    """Raise PlanError if one stage's own strategy would produce half a model, without other stages' parameters."""
    stage = source.stages[0].stage
    others = [rank for rank in found.ranks if rank not in source.ranks]
    if part_of_target(source, target) is not None or not (stage or others) or (target is not None and not absent):
        return
    whose = f" on {rank_names(others, 3)}" if others else ""
    raise PlanError(
        f"'src_strategy_file' {source.origin}: is pipeline stage {stage}'s own, and the result would be without the "
        f"parameters of other stages{whose}: merge the strategies of all stages by merge_pipeline_strategys"
    )


def _stages_beside_warning(source: Strategy, target: Strategy | None) -> Iterable[str]:
    """A warning if another stage's strategy lies beside `source`, which may be one stage's or the whole network's."""
    if target is None and next(stages_beside(source.origin), 0) != source.stages[0].stage:
        yield (
            f"{source.origin}: another pipeline stage's strategy lies beside it: if it is one stage's own, the result "
            "is without the parameters of other stages"
        )


def _own_stage_warning(source: Strategy | None, target: Strategy | None) -> Iterable[str]:
    if target is None and source is not None and source.stages[0].stage:
        yield (
            f"{source.origin}: is pipeline stage {source.stages[0].stage}'s own: the file is without the parameters of "
            "other stages"
        )


def _plan_of_rank(rank: int, files: Mapping[int, str], source: Strategy | None, target: Strategy | None) -> Planned:
    """The plan of `rank`, or the only rank, from `files`, which may be some of the source's only."""
    origin = "checkpoint_files_map"
    given = _files_of_ranks(files, source)
    lost = {
        number: "no file of it was given" for number in (source.ranks if source else range(1)) if number not in given
    }
    locations = {number: parse_url(os.path.abspath(path)) for number, path in given.items()}
    wanted = sorted((needed_ranks(source, target, rank) if source else {0}) & lost.keys())
    missing = CatalogError(f"{origin}: rank {rank} is made from {rank_names(wanted)} too, whose files it does not name")
    if not given:
        raise missing
    catalog = catalog_given(origin, locations, digest=wants_digest(source, target))
    written = rank if target else 0
    inputs = PlanInputs(replace(catalog, lost=lost), source, target, CheckpointFormat.CKPT, layout=RankFolders())
    planned = build_checked_plan(inputs, only=written)
    if not given.keys() >= {*planned.plan.rank_plan(written).source_ranks}:
        raise missing
    return planned


def _files_of_ranks(files: Mapping[int, str], source: Strategy | None) -> dict[int, str]:
    """The files by rank; those of one stage's own strategy may be numbered as in the whole job."""
    ranks = source.ranks if source else range(1)
    first = 0
    if source is not None and not source.merged and files:
        first = min(files) // len(ranks) * len(ranks)
    unknown = [rank for rank in files if rank - first not in ranks]
    if unknown:
        raise CatalogError(
            f"checkpoint_files_map: names ranks {unknown[:10]}, the source has {first} to {first + ranks.stop - 1}"
        )
    return {rank - first: path for rank, path in files.items()}
