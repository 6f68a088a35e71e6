"""Selects each rank's checkpoint file: one prefix, one step, one format on all ranks.

Decides by names alone; opens nothing. Where a choice would be a guess, the error lists the candidates and the option
that selects one.
"""

from collections.abc import Collection, Mapping, Sequence

from reshard.core.errors import CatalogError
from reshard.core.files.file_names import (
    NO_EPOCH,
    CheckpointName,
    Step,
    group_prefixes,
    numbered_template,
    parse_step,
)
from reshard.core.files.model import CheckpointFormat
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import MAX_LISTED, listed, rank_names
from reshard.core.storage.patterns import spelled_for
from reshard.core.text.options import option, source_option, spelled
from reshard.core.text.printing import printable

Names = Mapping[int, Sequence[CheckpointName]]


class FileSelection(Record):
    """The file chosen for each rank.

    Attributes:
        step: the step at which they were saved; None if their names have none.
        names: rank -> file.
        notes: sentences on what was chosen, and what was ignored and why.
    """

    format: CheckpointFormat
    step: Step | None
    names: Mapping[int, CheckpointName]
    notes: tuple[str, ...]


def select_files(
    origin: str, found: Names, *, step: str | None = None, source_prefix: str | None = None, named: bool = False
) -> FileSelection:
    """Select every rank's file: of one prefix, and of the requested step or the newest that every rank has.

    Args:
        origin: the checkpoint's name in messages.
        found: rank -> its checkpoint files, at least one, for all ranks that are needed.
        step: `10_5`, or `10_5_breakpoint`, which is only ever selected on request.
        source_prefix: a prefix, or a spelling with `{rank}` in place of the rank.
        named: the user named the files themselves, so `_breakpoint` ones are meant if present.
    """
    asked = _asked_step(step)
    with_breakpoints = named or (asked is not None and asked.breakpoint)
    candidates = {
        rank: [name for name in names if with_breakpoints or name.step is None or not name.step.breakpoint]
        for rank, names in found.items()
    }
    _check_candidates(origin, found, candidates)
    _check_stage_files_apart(origin, candidates)
    file_format = _only_format(origin, candidates)
    notes = _breakpoint_notes(found, candidates)
    if source_prefix is None and _is_one_file_each(candidates):
        if asked is not None:
            raise CatalogError(f"{origin}: step {asked} was asked for, but the names of the files carry no step")
        names = {rank: names[0] for rank, names in candidates.items()}
        chosen_step, spelling = None, None
        notes += _unlike_names_note(names)
    else:
        spelling, prefix_notes = _choose_prefix(origin, candidates, source_prefix)
        by_step = {
            rank: {name.step: name for name in names if name.prefix == spelled_for(spelling, rank)}
            for rank, names in candidates.items()
        }
        chosen_step = _choose_step(f"{origin}, prefix {printable(spelling)}", by_step, asked)
        names = {rank: steps[chosen_step] for rank, steps in by_step.items()}
        notes += prefix_notes + (_newer_notes(by_step, chosen_step) if asked is None else ())
    _check_same_stages(origin, names)
    return FileSelection(file_format, chosen_step, names, (_chosen_note(spelling, chosen_step, names, asked), *notes))


def _asked_step(step: str | None) -> Step | None:
    if step is None:
        return None
    asked = parse_step(step)
    if asked is None or asked.epoch == NO_EPOCH:
        raise CatalogError(
            f"{source_option('step', step)}: is not a step; write EPOCH_STEP, such as 10_5 or 10_5_breakpoint"
        )
    return asked


def _check_candidates(origin: str, found: Names, candidates: Names) -> None:
    without = [rank for rank, names in candidates.items() if not names]
    if without:
        steps = sorted({name.step for rank in without for name in found[rank] if name.step is not None})
        raise CatalogError(
            f"{origin}: {rank_names(without, MAX_LISTED)}: only checkpoints saved on an exception; "
            f"they are used if {source_option('step')} asks for one: {_steps(steps)}"
        )


def _check_stage_files_apart(origin: str, candidates: Names) -> None:
    for rank, names in candidates.items():
        whole = {name.prefix for name in names if name.step is None and not name.stage_numbers}
        for name in names:
            if name.stage_numbers and name.prefix in whole:
                raise CatalogError(
                    f"{origin}: rank_{rank} has a file {printable(name.prefix)}.{name.format} and stage files "
                    f"({printable(name.name)}): it is unclear which is the checkpoint. Remove the other one"
                )


def _check_same_stages(origin: str, names: Mapping[int, CheckpointName]) -> None:
    by_stages: dict[tuple[int, ...], list[int]] = {}
    for rank, name in names.items():
        by_stages.setdefault(name.stage_numbers, []).append(rank)
    if len(by_stages) > 1:
        groups = [
            f"{'stages ' + ', '.join(map(str, stages)) if stages else 'one whole file'} ({rank_names(ranks, 3)})"
            for stages, ranks in by_stages.items()
        ]
        raise CatalogError(
            f"{origin}: ranks have files of different stages: {'; '.join(groups)}. Every rank needs one of each stage"
        )


def _only_format(origin: str, candidates: Names) -> CheckpointFormat:
    examples = {name.format: (rank, name.name) for rank, names in candidates.items() for name in names}
    if len(examples) == 1:
        return next(iter(examples))
    mixed = " and ".join(f"{printable(name)} (rank_{rank})" for _, (rank, name) in sorted(examples.items()))
    raise CatalogError(
        f"{origin}: files of both formats, {mixed}: it is unclear which are the checkpoint. Remove one kind, "
        "or name the files by a pattern with {rank}"
    )


def _is_one_file_each(candidates: Names) -> bool:
    """True if every rank has just one file, without a step in its name: nothing is left to choose."""
    return all(len(names) == 1 and names[0].step is None for names in candidates.values())


def _choose_prefix(origin: str, candidates: Names, asked: str | None) -> tuple[str, tuple[str, ...]]:
    prefixes = {rank: {name.prefix for name in names} for rank, names in candidates.items()}
    groups = group_prefixes(prefixes)
    complete = [spelling for spelling, ranks in groups.items() if len(ranks) == len(prefixes)]
    if asked is not None:
        return _asked_prefix(origin, prefixes, groups, complete, asked), ()
    if not complete:
        raise CatalogError(f"{origin}: no prefix of file names that all {len(prefixes)} ranks have: {_spread(groups)}")
    if len(complete) > 1:
        pattern = _pattern_of_ranks(origin, candidates, complete)
        or_ranks = (
            f". If their numbers are ranks, name {pattern} and its strategy; if each is whole," if pattern else "."
        )
        raise CatalogError(
            f"{origin}: checkpoints of several prefixes: {listed(complete)}{or_ranks} {option('source_prefix')} "
            "chooses one"
        )
    partial = {spelling: ranks for spelling, ranks in groups.items() if spelling != complete[0]}
    notes = (f"ignored prefixes that not all ranks have: {_spread(partial)}",) if partial else ()
    return complete[0], notes


def _pattern_of_ranks(origin: str, candidates: Names, prefixes: Sequence[str]) -> str:
    """Return the pattern of files of one folder whose prefixes differ in a number only; empty if there is none."""
    template = numbered_template(prefixes)
    if template is None or len(candidates) > 1:
        return ""
    name = next(iter(candidates.values()))[0]
    return f"{origin}/{template}{name.name.removeprefix(name.prefix)}"


def _asked_prefix(
    origin: str,
    prefixes: Mapping[int, Collection[str]],
    groups: Mapping[str, tuple[int, ...]],
    complete: Sequence[str],
    asked: str,
) -> str:
    without = [rank for rank, names in prefixes.items() if spelled_for(asked, rank) not in names]
    if not without:
        return asked
    # a prefix that contains the rank, as spelled on one rank
    spellings = [spelling for spelling in complete if any(spelled_for(spelling, rank) == asked for rank in prefixes)]
    if len(spellings) == 1:
        return spellings[0]
    raise CatalogError(
        f"{origin}: no files of prefix {printable(asked)} ({option('source_prefix')}) for "
        f"{rank_names(without, MAX_LISTED)}. There are: {_spread(groups)}"
    )


def _spread(groups: Mapping[str, tuple[int, ...]]) -> str:
    return listed([f"{spelling} ({rank_names(ranks, 3)})" for spelling, ranks in groups.items()])


def _choose_step(
    origin: str, by_step: Mapping[int, Mapping[Step | None, CheckpointName]], asked: Step | None
) -> Step | None:
    common = set.intersection(*(set(steps) for steps in by_step.values()))
    dated = sorted(step for step in common if step is not None)
    if asked is not None:
        if asked in common:
            return asked
        without = rank_names((rank for rank, steps in by_step.items() if asked not in steps))
        have = f"all ranks have {_steps(dated)}" if dated else "no step is on all ranks"
        raise CatalogError(f"{origin}: step {asked} is missing on {without}; {have}")
    if not common:
        every = {step for steps in by_step.values() for step in steps}
        incomplete = [
            _incomplete(step, by_step) for step in sorted((step for step in every if step is not None), reverse=True)
        ]
        if None in every:
            incomplete.append(_incomplete(None, by_step))
        raise CatalogError(f"{origin}: no step that all ranks have: {listed(incomplete)}")
    if None in common and dated:
        undated = printable(next(iter(by_step.values()))[None].name)
        raise CatalogError(
            f"{origin}: {undated} carries no step, others do: it is unclear which is newer. "
            f"{source_option('step')} chooses one of {_steps(dated)}"
        )
    return dated[-1] if dated else None


def _incomplete(step: Step | None, by_step: Mapping[int, Mapping[Step | None, CheckpointName]]) -> str:
    without = [rank for rank, steps in by_step.items() if step not in steps]
    return f"{'the file without a step' if step is None else step} (not on {rank_names(without, 3)})"


def _steps(steps: Sequence[Step]) -> str:
    """List steps, newest first."""
    return listed([str(step) for step in reversed(steps)])


def _chosen_note(
    spelling: str | None, step: Step | None, names: Mapping[int, CheckpointName], asked: Step | None
) -> str:
    example = printable(names[min(names)].name)
    of_prefix = "" if spelling is None else f" of prefix {printable(spelling)}"
    if step is None:
        what = f"using files whose names have no step number{of_prefix}"
    else:
        why = "as asked" if asked is not None else "the newest that all ranks have"
        what = f"using step {step}{of_prefix}, {why}"
    return f"{what} ({example} on rank_{min(names)}, {len(names)} ranks)" if len(names) > 1 else f"{what} ({example})"


def _unlike_names_note(names: Mapping[int, CheckpointName]) -> tuple[str, ...]:
    groups = group_prefixes({rank: {name.prefix} for rank, name in names.items()})
    return (f"the names of the files differ: {_spread(groups)}",) if len(groups) > 1 else ()


def _newer_notes(by_step: Mapping[int, Mapping[Step | None, CheckpointName]], chosen: Step | None) -> tuple[str, ...]:
    """Notes on steps newer than the chosen one, or on any steps if the chosen files have none."""
    dated = {step for steps in by_step.values() for step in steps if step is not None}
    newer = sorted((step for step in dated if chosen is None or step > chosen), reverse=True)
    incomplete = [_incomplete(step, by_step) for step in newer if any(step not in steps for steps in by_step.values())]
    return (f"ignored newer steps that are incomplete: {listed(incomplete)}",) if incomplete else ()


def _breakpoint_notes(found: Names, candidates: Names) -> tuple[str, ...]:
    kept = {(rank, name.name) for rank, names in candidates.items() for name in names}
    ignored = {name.step for rank, names in found.items() for name in names if (rank, name.name) not in kept}
    steps = sorted(step for step in ignored if step is not None)
    if not steps:
        return ()
    note = f"ignored checkpoints saved on an exception, which {source_option('step')} can ask for: {_steps(steps)}"
    return (spelled(note),)
