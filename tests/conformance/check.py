"""One case, from the whole model to the verdict.

MindSpore cuts source and target from the whole model, each pipeline stage by that stage's own strategy. What it cut is
compared with the slow reference, which also replaces MindSpore if it refuses. Then reshard converts the source; every
rank's file has to equal what MindSpore cut, and MindSpore has to load it. Where it can, MindSpore also converts source
to target directly, from the merged strategies: a second opinion, and the judge of how stages are put together.

MindSpore's transform is given and asked for `.ckpt` only: what it writes into `.safetensors` is wrong for slices that
are not contiguous in memory, and lacks parameters of pipelines. Its `save_checkpoint` writes either kind.
"""

import re
import shutil
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from reshard.core.conversion.convert import convert
from reshard.core.errors import ReshardError
from reshard.core.request.conversion import build_request
from tests.conformance.cases import Case, ShardGrid, Side, rank_contents
from tests.conformance.differences import differences, loading_differences, with_text, without
from tests.conformance.mindspore_process import Judge, RefusalError
from tests.conformance.random_cases import build_case
from tests.support.checkpoints import Contents, read_tree
from tests.support.strategy_writer import FileLayout, write_strategy_file

MISREADS = "takes one stage's layout of a shared parameter for the others', or misreads one as above"
LEAVES_UNCUT = "does not cut what only the target's strategy has (not asked)"


@dataclass
class Verdict:
    """What came of a case."""

    case: Case
    differences: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Why MindSpore did not cut a side: then the reference alone is the judge."""
    direct_refusals: list[str] = field(default_factory=list)
    """Why MindSpore's direct conversion is no second judge."""


def check_case(seed: int, judge: Judge, directory: Path) -> Verdict:
    """Makes the case in `directory`, which is removed if nothing differs."""
    shutil.rmtree(directory, ignore_errors=True)
    check = _Check(build_case(seed), judge, directory)
    try:
        check.run()
    except RefusalError as refusal:
        check.verdict.differences.append(f"MindSpore does not save the case's files: {refusal}")
    if not check.verdict.differences:
        shutil.rmtree(directory)
    return check.verdict


class _Check:
    def __init__(self, case: Case, judge: Judge, directory: Path) -> None:
        self.case = case
        self.judge = judge
        self.directory = directory
        self.verdict = Verdict(case)

    def run(self) -> None:
        case = self.case
        held = rank_contents(case, case.source, case.uncut_in_source)
        want = rank_contents(case, case.target, case.uncut_in_target)
        self._write_strategies("source", case.source)
        self._write_strategies("target", case.target)
        self._cut("source", case.source, held, case.uncut_in_source)
        self._cut("target", case.target, want, case.uncut_in_target)
        if self._convert(self._given(held)):
            out = self.directory / "out"
            self._note(differences("reshard's", read_tree(out), with_text(want, case.text)))
            self._load(out, want)
            self._convert_directly(want)

    def _note(self, lines: list[str]) -> None:
        self.verdict.differences.extend(lines)

    # strategies

    def _write_strategies(self, name: str, side: Side | None) -> None:
        """As reshard is given them, and each stage's own to have MindSpore cut by."""
        if side is None:
            return
        merged: dict[int, dict[str, FileLayout]] = {}
        for stage, cuts in enumerate(side.stages):
            layouts = {key: cut.for_file(self.case.model[key][1]) for key, cut in cuts.items()}
            merged[stage] = {f"{stage}-{key}": layout for key, layout in layouts.items()}
            write_strategy_file(self._stage_strategy(name, side, stage), {stage: layouts})
            if side.written.is_directory:
                for rank in side.stage_ranks(stage):
                    path = self._strategy(name, side) / f"rank_{rank}{side.written.suffix}"
                    write_strategy_file(path, {stage: layouts})
        if side.written.is_merged:
            write_strategy_file(self._strategy(name, side), merged)

    def _stage_strategy(self, name: str, side: Side, stage: int) -> Path:
        return self.directory / f"{name}_stages" / f"stage_{stage}{side.written.suffix}"

    def _strategy(self, name: str, side: Side) -> Path:
        """What reshard is given."""
        if side.written.is_directory:
            return self.directory / f"{name}_strategies"
        if side.written.is_merged:
            return self.directory / f"{name}_strategy{side.written.suffix}"
        return self._stage_strategy(name, side, 0)

    def _merged_strategy(self, name: str, side: Side | None) -> Path | None:
        """What MindSpore is given; it merges a directory first."""
        if side is None:
            return None
        strategy = self._strategy(name, side)
        if side.written.is_directory:
            merged = self.directory / f"{name}_merged_by_mindspore{side.written.suffix}"
            self.judge.merge(strategy, merged)
            return merged
        return strategy

    # what MindSpore makes

    def _cut(self, name: str, side: Side | None, expected: dict[int, Contents], uncut: set[str]) -> None:
        """Has MindSpore cut the whole model into the checkpoint `name`; what it refuses or misreads is only saved."""
        refusals: list[str] = []
        if side:
            for stage, cuts in enumerate(side.stages):
                refusals += self._cut_stage(name, side, stage, cuts, expected, uncut)
        self.verdict.refusals.extend(refusals)
        if refusals or side is None:
            shutil.rmtree(self.directory / name, ignore_errors=True)
            self._save(name, expected)

    def _cut_stage(
        self,
        name: str,
        side: Side,
        stage: int,
        cuts: dict[str, ShardGrid],
        expected: dict[int, Contents],
        uncut: set[str],
    ) -> list[str]:
        """Returns why MindSpore's cut cannot be taken; nothing if it can."""
        whole, place = f"{name}_whole_{stage}", self.directory / f"{name}_cut_{stage}"
        self._save(whole, {0: {key: value for key, value in self.case.model.items() if key in cuts or key in uncut}})
        try:
            self.judge.transform(self.directory / whole, place, None, self._stage_strategy(name, side, stage))
        except RefusalError as refusal:
            return [_reason(refusal)]
        ranks = side.stage_ranks(stage)
        found = {ranks.start + rank: contents for rank, contents in read_tree(place).items()}
        misread = {key: why for key, cut in cuts.items() if (why := cut.misread_by_mindspore)}
        wanted = {rank: expected[rank] for rank in ranks}
        self._note(differences(f"MindSpore's {name}", without(found, set(misread)), without(wanted, set(misread))))
        for rank in found:
            destination = self.directory / name / f"rank_{rank}"
            destination.parent.mkdir(exist_ok=True)
            (place / f"rank_{rank - ranks.start}").rename(destination)
        return sorted(set(misread.values()))

    def _given(self, held: dict[int, Contents]) -> Path:
        """The source that reshard is given: MindSpore's cut, or saved again as `.safetensors` or with text entries."""
        case = self.case
        if case.source_format == "ckpt" and not case.text:
            return self.directory / "source"
        self._save("given", held, case.source_format, case.text)
        given = self.directory / "given"
        self._note(differences("MindSpore's saved", read_tree(given), with_text(held, case.text)))
        return given

    def _save(
        self, name: str, ranks: dict[int, Contents], file_format: str = "ckpt", text: dict[str, str] | None = None
    ) -> None:
        """Has MindSpore save a checkpoint."""
        place = self.directory / name
        files = {place / f"rank_{rank}" / f"net{rank}.{file_format}": contents for rank, contents in ranks.items()}
        self.judge.save(files, text or {})

    def _load(self, out: Path, want: dict[int, Contents]) -> None:
        try:
            loaded = self.judge.load(out)
        except RefusalError as refusal:
            self._note([f"MindSpore does not load it: {refusal}"])
        else:
            self._note(loading_differences(loaded, want, self.case.text))

    def _convert_directly(self, want: dict[int, Contents]) -> None:
        """MindSpore's own conversion of source to target, where its rules are those of the format."""
        case, place = self.case, self.directory / "direct"
        if case.late:
            self.verdict.direct_refusals.append(LEAVES_UNCUT)
            return
        try:
            source, target = self._merged_strategy("source", case.source), self._merged_strategy("target", case.target)
            self.judge.transform(self.directory / "source", place, source, target)
        except RefusalError as refusal:
            self.verdict.direct_refusals.append(_reason(refusal))
            return
        found = read_tree(place)
        if case.source and case.target:  # what the target has no place for it keeps as it is, cut
            found = without(found, case.source.names - case.target.names)
        unsure = {name for side in (case.source, case.target) if side for name in side.misread_by_mindspore}
        if differences("", found, want):
            self._note(differences("MindSpore's direct", without(found, unsure), without(want, unsure)))
            self.verdict.direct_refusals.append(MISREADS)

    # what reshard makes

    def _convert(self, given: Path) -> bool:
        case = self.case
        request = build_request(
            source=str(given),
            target=str(self.directory / "out"),
            source_strategy=str(self._strategy("source", case.source)) if case.source else "",
            target_strategy=str(self._strategy("target", case.target)) if case.target else "",
            format=case.target_format,
            workers=1,
        )
        try:
            convert(request)
        except Exception as error:
            what = f"{type(error).__name__}: {error}" if isinstance(error, ReshardError) else traceback.format_exc()
            self._note([f"reshard: {what}"])
            return False
        return True


def _reason(refusal: RefusalError) -> str:
    """A refusal's message without what differs from case to case."""
    text = str(refusal).strip().splitlines()[0]
    for pattern, name in ((r"/\S*/\S*", "PATH"), (r"'[^']*'", "NAME"), (r"[\[(][\d, -]+[\])]", "LIST"), (r"\d+", "N")):
        text = re.sub(pattern, name, text)
    return text.split(". ")[0]
