"""`transform_checkpoints`, `transform_checkpoint_by_rank`, `rank_list_for_transform`, and 2.10's names for them.

Where they differ from MindSpore's on purpose:

- Any number of devices becomes any other; MindSpore refuses where neither divides the other.
- Of several files in a rank's folder the newest step that every rank has is taken, of one prefix; MindSpore takes the
  last one by name, `-9_5` before `-10_5`, each rank for itself.
- Every rank of the source's strategy has to be there, and every parameter of the target's has to be in the source's
  files; MindSpore leaves out what it does not find, or writes another slice.
- Parameters of the source's strategy that the target's lacks are left out, with a warning that names them; MindSpore
  writes one rank's slice under the whole parameter's name.
- Parameters of the target's strategy that the source's lacks are cut as the target's says; MindSpore leaves them whole.
- Several ranks without a source strategy are a ValueError; MindSpore takes rank 0 for the whole.
- Pipelines in `.safetensors` keep all their parameters, unevenly cut ones their rows, bfloat16 NaNs their bits.
- A pipeline stage converted by itself becomes parts from `.safetensors` too; MindSpore names them like the whole.
- `.ckpt` becomes `.safetensors` if that is asked for; MindSpore refuses. An unknown `output_format` is always refused.
- Nothing appears in the destination before all ranks are written and checked; files of other names stay as they are. It
  may not be the source itself, nor a checkpoint that `reshard` converted.
- `process_num` is the number of threads.
- Parameters may be in another order in the files that pipelines become.
- `rank_list_for_transform` returns just the ranks that are read: always a subset of MindSpore's list.
- A strategy file that is no strategy is a ValueError, as documented; MindSpore raises a TypeError for some.
"""

import os
import shutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from glob import escape, glob

import numpy as np

from core.checkpoint.catalog import catalog_files
from core.checkpoint.model import CheckpointFormat
from core.checkpoint.selection import rank_names
from core.convert import catalog_source, convert, plan_conversion, wants_digest
from core.doubts import DOUBT
from core.errors import CatalogError
from core.mindspore_api.arguments import FORMATS
from core.mindspore_api.failures import reading, writing
from core.mindspore_api.file_writing import PlannedFile, write_files
from core.mindspore_api.needed_ranks import check_rank, from_zero, needed_ranks
from core.mindspore_api.paths import checked_directory, given_strategy
from core.parameters import match_parameters
from core.plan import ConversionPlan, PlanInputs
from core.report import ConversionReport
from core.request import ConversionRequest, build_request
from core.storage.publishing import STATE_DIRECTORY
from core.storage.urls import parse_url
from core.strategy.model import Strategy
from core.subnetwork import part_of_target

_WORK_DIRECTORY = ".reshard-transform"


def transform_checkpoints(
    src_checkpoints_dir: str,
    dst_checkpoints_dir: str,
    ckpt_prefix: str,
    src_strategy_file: str | None = None,
    dst_strategy_file: str | None = None,
    process_num: int = 1,
    output_format: str = "ckpt",
) -> None:
    """Converts a checkpoint from one strategy to another, into `rank_N/{ckpt_prefix}N.{output_format}`.

    Given the strategy of one pipeline stage of the source, whose parameters are a part of the target's, the files are
    `rank_N/{ckpt_prefix}N_part{stage}.ckpt`, which `load_segmented_checkpoints` reads.

    Raises:
        TypeError: a path, a strategy file's name or the prefix is no string.
        NotADirectoryError: the destination is a file.
        ValueError: the source has no files, of both kinds, or lacks some; a strategy cannot be used; source, target and
            options do not fit together.
        OSError: the destination cannot be written.
    """
    source_format = _format_in(src_checkpoints_dir)
    directory = checked_directory("dst_checkpoints_dir", dst_checkpoints_dir)
    if not isinstance(ckpt_prefix, str):
        raise TypeError(f"'ckpt_prefix' has to be a string, not {ckpt_prefix!r}")
    if not ckpt_prefix.strip() and source_format == "ckpt":
        raise ValueError("'ckpt_prefix' is blank")
    if output_format not in FORMATS:
        raise ValueError(f"'output_format' has to be one of {', '.join(FORMATS)}, not {output_format!r}")
    source = given_strategy("src_strategy_file", src_strategy_file)
    target = from_zero(given_strategy("dst_strategy_file", dst_strategy_file))
    if source is not None:
        source = _as_part(source, target)
    if os.path.exists(os.path.join(directory, STATE_DIRECTORY)):
        raise ValueError(
            f"{directory}: is a checkpoint that reshard converted, or is converting; name another directory"
        )
    work = os.path.join(directory, _WORK_DIRECTORY)
    if os.path.islink(work):
        raise ValueError(f"{work}: is a link, and what it leads to would be replaced; remove it")
    with reading():
        request = build_request(
            source=os.path.abspath(src_checkpoints_dir),
            target=work,
            source_strategy=os.path.abspath(src_strategy_file) if src_strategy_file else "",
            target_strategy=os.path.abspath(dst_strategy_file) if dst_strategy_file else "",
            format=output_format,
            prefix=ckpt_prefix,
            workers=process_num,
            overwrite=True,
            trust_strategy=True,  # MindSpore asks nobody, and its callers have no way to say that they are sure
        )

        def plan_of(request: ConversionRequest) -> ConversionPlan:
            return plan_conversion(request, catalog_source(request, source, target), source, target)

    with writing():
        report = convert(request, plan_of=plan_of)
    _give_names(report, work, directory)
    _warn_of(report.dropped)
    for doubt in report.notes:
        if doubt.startswith(DOUBT):
            warnings.warn(doubt, stacklevel=2)


def transform_checkpoint_by_rank(
    rank_id: int,
    checkpoint_files_map: Mapping[int, str],
    save_checkpoint_file_name: str,
    src_strategy_file: str | None = None,
    dst_strategy_file: str | None = None,
) -> None:
    """Writes one target rank's file from the source ranks' files that it needs; see `rank_list_for_transform`.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the name does not end in `.ckpt`; a file that is needed is missing or cannot be used; a strategy
            cannot be used; source and target do not fit together.
        OSError: the file cannot be written.
    """
    if not isinstance(checkpoint_files_map, dict):
        raise TypeError(f"'checkpoint_files_map' has to be a dict, not {checkpoint_files_map!r}")
    _check_rank_id(rank_id)
    if not isinstance(save_checkpoint_file_name, str):
        raise TypeError(f"'save_checkpoint_file_name' has to be a string, not {save_checkpoint_file_name!r}")
    if not save_checkpoint_file_name.endswith(".ckpt"):
        raise ValueError(f"'save_checkpoint_file_name' has to end in .ckpt: {save_checkpoint_file_name}")
    for rank, path in checkpoint_files_map.items():
        if not isinstance(rank, int | np.integer):
            raise TypeError(f"'checkpoint_files_map' has to have ranks for keys, not {rank!r}")
        if not isinstance(path, str) or not os.path.isfile(path):
            raise ValueError(f"'checkpoint_files_map' names no file for rank {rank}: {path}")
    source = from_zero(given_strategy("src_strategy_file", src_strategy_file))
    target = from_zero(given_strategy("dst_strategy_file", dst_strategy_file))
    with reading():
        check_rank(target, rank_id)
        plan = _plan_of_rank(rank_id, checkpoint_files_map, source, target)
    path = os.path.abspath(save_checkpoint_file_name)
    with writing():
        write_files([PlannedFile(plan, rank_id, path)], os.path.dirname(path), workers=1)
    _warn_of(source.parameters - target.parameters if source and target else ())


def rank_list_for_transform(
    rank_id: int, src_strategy_file: str | None = None, dst_strategy_file: str | None = None
) -> list[int]:
    """The source ranks whose files a target rank is made from, in descending order.

    Raises:
        TypeError: `rank_id` is no int, or a strategy file's name no string.
        ValueError: a strategy cannot be used, or the target has no such rank.
    """
    _check_rank_id(rank_id)
    source = from_zero(given_strategy("src_strategy_file", src_strategy_file))
    if source is None:
        return [0]
    target = from_zero(given_strategy("dst_strategy_file", dst_strategy_file))
    with reading():
        return sorted(needed_ranks(source, target, rank_id), reverse=True)


convert_checkpoints = transform_checkpoints
convert_checkpoint_by_rank = transform_checkpoint_by_rank
rank_list_for_convert = rank_list_for_transform


def _check_rank_id(rank_id: object) -> None:
    if not isinstance(rank_id, int):
        raise TypeError(f"'rank_id' has to be an int, not {rank_id!r}")


def _format_in(directory: str) -> str:
    """The kind of files that the rank folders hold, or a `.safetensors` file's own."""
    if not isinstance(directory, str):
        raise TypeError(f"'src_checkpoints_dir' has to be a string, not {directory!r}")
    if os.path.isfile(directory) and directory.endswith(".safetensors"):
        return "safetensors"
    formats = [kind for kind in FORMATS if glob(f"{escape(directory)}/rank_[0-9]*/*.{kind}")]
    if len(formats) > 1:
        raise ValueError(f"'src_checkpoints_dir' holds both .ckpt and .safetensors files: {directory}")
    if not formats:
        raise ValueError(f"'src_checkpoints_dir' has no rank folders with checkpoint files: {directory}")
    return formats[0]


def _as_part(source: Strategy, target: Strategy | None) -> Strategy:
    """The source, as a stage's own if it is a part of the target's network: MindSpore does not ask if it was merged."""
    own = replace(source, merged=False) if len(source.stages) == 1 else source
    return own if part_of_target(own, target) is not None else source


def _give_names(report: ConversionReport, work: str, directory: str) -> None:
    """Moves the finished files to where they belong, in place of what has their names."""
    for rank in report.ranks:
        path = os.path.join(directory, rank.file)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.replace(os.path.join(work, rank.file), path)
    shutil.rmtree(work)


def _warn_of(dropped: Iterable[str]) -> None:
    names = sorted(dropped)
    if names:
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        warnings.warn(
            f"left out, because the target's strategy does not have them: {', '.join(names[:10])}{more}", stacklevel=3
        )


def _plan_of_rank(
    rank: int, files: Mapping[int, str], source: Strategy | None, target: Strategy | None
) -> ConversionPlan:
    """The plan whose rank `rank` is made from `files`, which need not be all of the source's."""
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
    catalog = replace(catalog_files(origin, locations, digest=wants_digest(source, target)), lost=lost)
    here = replace(target, stages=(target.stage_of(rank),), merged=False) if target else None
    match = match_parameters(catalog, source, here)
    # what only other stages of the target hold is none of this rank's
    elsewhere = target.parameters if target else frozenset()
    match = replace(match, carried=tuple(each for each in match.carried if each.name not in elsewhere))
    plan = ConversionPlan(PlanInputs(catalog, source, here, CheckpointFormat.CKPT), match)
    if any(each.box is None for each in match.lost) or not given.keys() >= {*plan.rank_plan(rank).source_ranks}:
        raise missing
    return plan


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
