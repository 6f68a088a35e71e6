"""`unified_safetensors`: the checkpoint of many ranks as whole tensors, in files of about 3 GiB."""

import math
import os
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.place import FoundFile
from reshard.core.layouts.ranks.checkpoint import FoundRanks
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.layouts.unified.names import MAP_NAME, UnifiedNaming, file_names
from reshard.core.layouts.weight_maps import OTHERS_NAME, dump_weight_map
from reshard.core.mindspore_api.arguments import check_type
from reshard.core.mindspore_api.chosen_entries import with_chosen_entries
from reshard.core.mindspore_api.failures import reading, writing
from reshard.core.mindspore_api.file_writing import PlannedFile, write_files
from reshard.core.mindspore_api.paths import checked_directory, required_strategy
from reshard.core.mindspore_api.planning import Cataloged, Planned, build_checked_plan, catalog_ranks
from reshard.core.mindspore_api.rank_files import survey_ranks
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.stage_shards import names_in_order
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout

PART_BYTES = 3 * 2**30
"""The approximate size of the files."""

ChoiceOrName = Callable[[str], bool | str]

_LEFT_OUT = "accu_grads"
_SUFFIXES = (
    (re.compile(r"_?[0-9]+-[0-9]+_[0-9]+"), "_"),
    (re.compile(r"-?[0-9]+_[0-9]+"), "-"),
    (re.compile(r"_?[0-9]+"), "_"),
)
"""Forms of a suffix that fits several files: a task's number and a step, or one of them; and the text before it."""


def unified_safetensors(
    src_dir: str,
    src_strategy_file: str,
    dst_dir: str,
    merge_with_redundancy: bool = True,
    file_suffix: str | None = None,
    max_process_num: int = 64,
    choice_func: ChoiceOrName | None = None,
    split_dst_file: Sequence[int] = (),
) -> None:
    """Write whole tensors into `part{N}.safetensors`, and the file of each into `param_name_map.json`.

    Parameters outside the strategy go into `hyper_param.safetensors`.

    Args:
        src_dir: directory of the ranks' folders, of `.safetensors` files.
        src_strategy_file: their strategy.
        dst_dir: target directory; files of other names stay.
        merge_with_redundancy: ignored, since the files show it.
        file_suffix: end of the names of the files to take, before `.safetensors`.
        max_process_num: maximum number of threads.
        choice_func: maps a parameter's name to whether it is wanted, or to its new name.
        split_dst_file: (k, n) to write the k-th of n shares of the parts only, while other calls write the others.

    Raises:
        TypeError: a path is not a string.
        NotADirectoryError: `dst_dir` is a file.
        ValueError: a rank's file is missing, or cannot be used; the strategy cannot be used; nothing is chosen, or two
            parameters get one name.
        OSError: the files cannot be written.
    """
    strategy = required_strategy("src_strategy_file", src_strategy_file)
    directory = checked_directory("dst_dir", dst_dir)
    if max_process_num < 1:
        raise ValueError(f"'max_process_num' has to be at least 1, not {max_process_num}")
    share = _checked_share(split_dst_file)
    with reading():
        cataloged = _catalog(src_dir, strategy, file_suffix)
    names = _chosen_names(cataloged.catalog, strategy, choice_func)
    with reading():
        planned = _plan(cataloged.catalog, strategy, names)
    parts = _divided(planned.plan, names.values())
    with writing():
        files = _planned_files(planned.plan, parts, share)
        write_files(files, parse_url(directory), min(max_process_num, len(os.sched_getaffinity(0))))
        if share.number == 1:
            if not planned.plan.match.passed_through:
                _remove_former(os.path.join(directory, OTHERS_NAME))
            weights = {name: file for file, sizes in parts.items() for name in sizes}
            total_bytes = sum(sum(sizes.values()) for sizes in parts.values())
            write_bytes(parse_url(os.path.join(directory, MAP_NAME)), dump_weight_map(weights, total_bytes))
    for text in (*cataloged.warnings, *planned.warnings):
        warnings.warn(text, stacklevel=2)


class _Share(Record):
    """The k-th of several shares of the files; the first one also has what is there once."""

    number: int
    count: int

    def of(self, count: int) -> range:
        """The numbers of its files; the first shares have one more if `count` does not divide evenly."""
        each, more = divmod(count, self.count)
        start = each * (self.number - 1) + min(self.number - 1, more)
        return range(start, start + each + (self.number <= more))


def _divided(plan: ConversionPlan, names: Collection[str]) -> dict[str, dict[str, int]]:
    """Files of about `PART_BYTES` -> their parameters' names and sizes."""
    wanted = frozenset(names)
    sizes = {each.name: each.size_bytes for each in plan.rank_plan(0).parameters if each.name in wanted}
    parts = split_by_size(sizes, max(1, min(math.ceil(sum(sizes.values()) / PART_BYTES), len(sizes))))
    files = file_names(UnifiedNaming.MINDSPORE, len(parts))
    return {file: {name: sizes[name] for name in part} for file, part in zip(files, parts, strict=True)}


def _planned_files(plan: ConversionPlan, parts: Mapping[str, Collection[str]], share: _Share) -> list[PlannedFile]:
    """The files of a share: some of the parts, and with the first share the parameters outside the strategy."""
    own = share.of(len(parts))
    files = [PlannedFile(_with_only(plan, parts[file]), 0, file) for file in list(parts)[own.start : own.stop]]
    if share.number == 1 and plan.match.passed_through:
        files.append(PlannedFile(ConversionPlan(plan.inputs, replace(plan.match, resharded=())), 0, OTHERS_NAME))
    return files


def _remove_former(path: str) -> None:
    """Remove a file of an earlier call, which readers of the directory would take for this checkpoint's."""
    with mapped_errors(parse_url(path), "remove it"), suppress(FileNotFoundError):
        os.remove(path)


def split_by_size(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Divide names into `count` groups of similar size: the largest first, into the smallest group, as MindSpore."""
    groups: list[list[str]] = [[] for _ in range(count)]
    totals = [0] * count
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        smallest = totals.index(min(totals))
        groups[smallest].append(name)
        totals[smallest] += size
    return groups


def _checked_share(split: Sequence[int]) -> _Share:
    if not split:
        return _Share(1, 1)
    if len(split) != 2 or not all(isinstance(number, int) for number in split) or not 1 <= split[0] <= split[1]:
        raise ValueError(f"'split_dst_file' has to be (which share, of how many), counted from 1, not {split!r}")
    return _Share(split[0], split[1])


def _catalog(source: str, strategy: Strategy, suffix: str | None) -> Cataloged:
    check_type("src_dir", source, str)
    if not os.path.isdir(source):
        raise ValueError(f"'src_dir' is not a directory: {source}")
    found = survey_ranks(source)
    if set(found.formats) != {CheckpointFormat.SAFETENSORS}:
        there = ", ".join(f".{each}" for each in found.formats) or "no"
        raise ValueError(f"'src_dir' has to hold .safetensors files only, it holds {there} files: {source}")
    if suffix is not None:
        found = _with_suffix(found, suffix)
    cataloged = catalog_ranks(found, strategy, None)
    stage = strategy.stages[0].stage
    if not stage:
        return cataloged
    own = f"{strategy.origin}: is pipeline stage {stage}'s own: the result is without the parameters of other stages"
    return replace(cataloged, warnings=(*cataloged.warnings, own))


def _with_suffix(found: FoundRanks, suffix: str) -> FoundRanks:
    files = {rank: (_file_with(found.url, rank, found.files[rank], suffix),) for rank in found.ranks}
    return replace(found, files=files, names_files=True)


def _file_with(origin: str, rank: int, files: Sequence[FoundFile], suffix: str) -> FoundFile:
    """A rank's file with the suffix; of several, the one whose whole number is the suffix."""
    fitting = [file for file in files if _stem(file).endswith(suffix)]
    if len(fitting) > 1:
        lead = next((lead for pattern, lead in _SUFFIXES if pattern.fullmatch(suffix)), "")
        end = suffix if suffix.startswith(lead) else lead + suffix
        # in `rank_1-…` the number is a rank's, not a task's
        numbered = [each for each in fitting if lead and _stem(each).endswith(end)]
        if "-" in end.removeprefix("-"):
            numbered = [each for each in numbered if not _stem(each).endswith(f"rank{end}")]
        shortest = min((len(_stem(each)) for each in numbered), default=0)
        fitting = [each for each in numbered if len(_stem(each)) == shortest]
    if len(fitting) != 1:
        names = listed([file.location.name for file in files])
        raise ValueError(
            f"{origin}: rank_{rank} has {len(fitting)} files that 'file_suffix' {suffix!r} means, of {names}; give a "
            "longer one that all ranks' files end in"
        )
    return fitting[0]


def _stem(file: FoundFile) -> str:
    return file.location.name.removesuffix(f".{CheckpointFormat.SAFETENSORS}")


def _chosen_names(catalog: CheckpointCatalog, strategy: Strategy, choice: ChoiceOrName | None) -> dict[str, str]:
    """The chosen parameters of the strategy, in the files' order -> their names in the target."""
    held = dict.fromkeys(name for record in catalog.records.values() for name in record.index.entries)
    chosen: dict[str, str] = {}
    for name in held:
        if name not in strategy.parameters or name.startswith(_LEFT_OUT):
            continue
        answer = True if choice is None else choice(name)
        if not isinstance(answer, bool | str):
            raise ValueError(f"'choice_func' has to return a bool or a string, not {answer!r} as for {name!r}")
        if answer is not False:
            chosen[name] = answer if isinstance(answer, str) else name
    if not chosen:
        raise ValueError(f"{catalog.url}: no parameter of the strategy is in the files and chosen")
    outside = held.keys() - strategy.parameters
    taken: dict[str, str] = {}
    for name, new in chosen.items():
        if new in outside or taken.setdefault(new, name) != name:
            raise ValueError(f"'choice_func' gives {name!r} the name {new!r}, which {taken.get(new, new)!r} has")
    return chosen


def _plan(catalog: CheckpointCatalog, strategy: Strategy, names: Mapping[str, str]) -> Planned:
    """Plan the whole tensors under their names in the target."""
    stages = tuple(
        # unwanted layouts, of parameters in no file, stay: a stage may have no others
        replace(stage, layouts={names.get(name, name): layout for name, layout in _wanted_last(stage, names)})
        for stage in strategy.stages
    )
    source = replace(strategy, stages=stages)
    there = with_chosen_entries(catalog, lambda name: names.get(name, None if name in strategy.parameters else name))
    unwanted = set(names_in_order(catalog)).difference(names)
    return build_checked_plan(
        PlanInputs(there, source, None, CheckpointFormat.SAFETENSORS, layout=RankFolders()), unwanted=unwanted
    )


def _wanted_last(stage: StageStrategy, names: Mapping[str, str]) -> list[tuple[str, ParameterLayout]]:
    """The layouts of a stage by name; a chosen parameter may take the name of one that is left out."""
    return sorted(stage.layouts.items(), key=lambda item: item[0] in names)


def _with_only(plan: ConversionPlan, names: Collection[str]) -> ConversionPlan:
    wanted = frozenset(names)
    resharded = tuple(parameter for parameter in plan.match.resharded if parameter.name in wanted)
    return ConversionPlan(plan.inputs, replace(plan.match, resharded=resharded, passed_through=()))
