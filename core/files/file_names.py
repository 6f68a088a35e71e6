"""Parses the names of checkpoint files: prefix, step, format.

Training writes `{prefix}-{epoch}_{step}.ckpt`, and `…_breakpoint.ckpt` when an exception ends it; converted checkpoints
have no step: the whole name is the prefix. A prefix may contain the rank (`pangu3-100_2.ckpt`), and then differs on
every rank. A *spelling* names a prefix on all ranks: it is the prefix itself, or a *template* with `{rank}` in place of
the rank.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, pairwise

from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat
from reshard.core.runtime.records import Record
from reshard.core.storage.patterns import NUMBER, RANK_FIELD

_STEP = re.compile(rf"(?P<epoch>{NUMBER})_(?P<step>{NUMBER})(?P<breakpoint>_breakpoint)?")
_ITERATION = re.compile(NUMBER)
NO_EPOCH = -1
_STEM = re.compile(rf"(?P<prefix>.+)-(?P<at>{_STEP.pattern})", re.DOTALL)

_RANK = re.compile(rf"(?<![a-z])rank[_-]?(?P<rank>{NUMBER})(?![0-9])", re.ASCII | re.IGNORECASE)
_LAST_NUMBER = re.compile(rf"(?P<before>.*(?<![0-9])){NUMBER}(?P<after>[^0-9]*)", re.DOTALL)

# "1" occurs often in "run1111-1": templates multiply with occurrences, and the rank is near the end
_MAX_OCCURRENCES = 6
_OF_HYPER_PARALLEL = re.compile(r"_rank\d+_\.safetensors", re.ASCII)


class Step(Record, order=True):
    """When a checkpoint was saved; ordered by epoch, then step. `breakpoint`: saved because of an exception.

    The iterations of a Checkpoint 2.0 are of no epoch (`NO_EPOCH`).
    """

    epoch: int
    step: int
    breakpoint: bool = False

    def __str__(self) -> str:
        if self.epoch == NO_EPOCH:
            return str(self.step)
        return f"{self.epoch}_{self.step}" + ("_breakpoint" if self.breakpoint else "")


class CheckpointName(Record):
    """The parsed name of a checkpoint file; `step` is None if the name has none.

    `stage_numbers` are the stages of the files that the name covers, if they are stage files; see
    `reshard.core.files.stage_files`.
    """

    name: str
    prefix: str
    step: Step | None
    format: CheckpointFormat
    stage_numbers: tuple[int, ...] = ()


def parse_name(name: str) -> CheckpointName | None:
    """Parse a file's name; None if it is not a checkpoint file's: hidden, or of another extension.

    Neither is one with a literal `{rank}` in it: it would read as a template.
    """
    stem, _, extension = name.rpartition(".")
    if not stem or name.startswith(".") or RANK_FIELD in name or extension not in SELF_CONTAINED:
        return None
    file_format = CheckpointFormat(extension)
    match = _STEM.fullmatch(stem)
    if match is None:
        return CheckpointName(name, stem, None, file_format)
    return CheckpointName(name, match["prefix"], parse_step(match["at"]), file_format)


def parse_step(text: str) -> Step | None:
    """Parse a step, `10_5` or `10_5_breakpoint`, or an iteration, `40`; None if the text is neither."""
    if _ITERATION.fullmatch(text):
        return Step(NO_EPOCH, int(text))
    match = _STEP.fullmatch(text)
    if match is None:
        return None
    return Step(int(match["epoch"]), int(match["step"]), match["breakpoint"] is not None)


def rank_in(prefix: str) -> int | None:
    """Return the rank that a prefix says it is of, as `net_rank_3` does; None if it says none. The last one counts."""
    match = _last_rank(prefix)
    return int(match["rank"]) if match else None


def rank_template(prefix: str) -> str | None:
    """Return the template of a prefix that says its rank: `net_rank_{rank}`; None if it says none."""
    match = _last_rank(prefix)
    return f"{prefix[: match.start('rank')]}{RANK_FIELD}{prefix[match.end('rank') :]}" if match else None


def _last_rank(prefix: str) -> re.Match[str] | None:
    matches = [*_RANK.finditer(prefix)]
    return matches[-1] if matches else None


def numbered_template(prefixes: Collection[str]) -> str | None:
    """Return the template of several prefixes that differ in their last number only; None if they do not."""
    templates = set()
    for prefix in prefixes:
        match = _LAST_NUMBER.fullmatch(prefix)
        templates.add(f"{match['before']}{RANK_FIELD}{match['after']}" if match else prefix)
    return templates.pop() if len(templates) == 1 < len(prefixes) else None


def group_prefixes(prefixes: Mapping[int, Collection[str]]) -> dict[str, tuple[int, ...]]:
    """Return the spellings under which prefixes of several ranks agree, and the ranks of each.

    `prefixes` are each rank's. Every prefix of every rank belongs to one spelling: to itself if all ranks have it
    (`CKP_1`, a second run of `CKP`, is also what `CKP_{rank}` gives on rank 1), otherwise to the spelling that most
    ranks have. Spellings of most ranks come first.
    """
    owners: dict[str, dict[int, str]] = {}
    for rank, names in prefixes.items():
        for prefix in names:
            for spelling in (prefix, *_templates(prefix, rank)):
                owners.setdefault(spelling, {})[rank] = prefix

    def order(spelling: str) -> tuple[bool, int, bool, str]:
        is_template = spelling not in owners[spelling].values()
        return is_template or len(owners[spelling]) < len(prefixes), -len(owners[spelling]), is_template, spelling

    groups: dict[str, tuple[int, ...]] = {}
    taken: set[tuple[int, str]] = set()
    for spelling in sorted(owners, key=order):
        members = {rank: prefix for rank, prefix in owners[spelling].items() if (rank, prefix) not in taken}
        if not members:
            continue
        taken.update(members.items())
        # a template of one rank says less than the name itself
        name = spelling if len(members) > 1 else next(iter(members.values()))
        groups[name] = tuple(sorted(members))
    return dict(sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])))


def _templates(prefix: str, rank: int) -> Iterator[str]:
    """Yield every way to replace one or more occurrences of the rank's number by `{rank}`."""
    number = str(rank)
    # the lookahead finds overlapping ones too: rank 11 of "run1" is "run111"
    places = [match.start() for match in re.finditer(f"(?={number})", prefix)][-_MAX_OCCURRENCES:]
    for count in range(1, len(places) + 1):
        for chosen in combinations(places, count):
            if any(after - before < len(number) for before, after in pairwise(chosen)):
                continue
            template = prefix
            for place in reversed(chosen):
                template = template[:place] + RANK_FIELD + template[place + len(number) :]
            yield template


def is_rank_file_of_hyper_parallel(name: str) -> bool:
    """True for the name that hyper_parallel gives a rank's file, in whichever format it saves."""
    return _OF_HYPER_PARALLEL.fullmatch(name) is not None
