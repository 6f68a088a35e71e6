"""What a diagnosis says: an answer, the checks, and each finding."""

from collections.abc import Iterator

from pydantic import Field

from reshard.core.plan.whole_shapes import NOT_CONFIRMED, WholeShapes
from reshard.core.reports.blocks import GAP, Block, Facts, Line, Table
from reshard.core.reports.report import Report
from reshard.core.runtime.wording import counted
from reshard.core.source.findings import Finding, Severity
from reshard.core.source.model_directory import LoadedModel


class Diagnosis(Report):
    """The findings about a checkpoint and a strategy.

    Attributes:
        source: URL of the checkpoint.
        strategy: URL of the strategy; empty if none was given.
        fits: whether nothing contradicts that the strategy is the checkpoint's; None if there is no strategy. Of a
            model's directory: whether loaders would load all of it; None if names could not be checked.
        whole_shapes: shapes of the whole tensors, and whether more than strategy and shards shows them.
        facts: (name, text) of both, for a table.
        findings: problems first.
        not_checked: those of `checks` that other findings made impossible.
        checks: the checks, in their order.
        loaded: what loaders would make of a model's directory; None for other checkpoints.
    """

    source: str
    strategy: str
    fits: bool | None
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...] = ()
    whole_shapes: WholeShapes = Field(default_factory=WholeShapes)
    checks: tuple[str, ...] = ()
    loaded: LoadedModel | None = None

    def blocks(self) -> Iterator[Block]:
        """Yield its content: the answer, the checks, and each finding."""
        yield Facts([*self.facts, *self._answer()])
        if self.checks:
            yield GAP
            yield Table(("check", "result"), [(check, self._result(check)) for check in self.checks])
        for finding in self.findings:
            advice = [("  do", finding.advice)] if finding.advice else []
            yield from (GAP, Line(f"{finding.severity.upper()}, {finding.check}"))
            yield Facts([("  found", finding.found), ("  means", finding.means), *advice])

    def _answer(self) -> list[tuple[str, str]]:
        problems = [finding for finding in self.findings if finding.severity is Severity.PROBLEM]
        if self.loaded is not None:
            return [("answer", self._loading_text(len(problems)))]
        if self.fits is None:
            return [("answer", "UNKNOWN: there is no strategy to compare with")]
        if not self.strategy:
            return []
        if self.fits:
            return [("answer", self._consistent_text())]
        return [("answer", f"DOES NOT FIT: {counted(len(problems), 'problem')}")]

    def _loading_text(self, problems: int) -> str:
        if problems:
            return f"WOULD NOT LOAD CORRECTLY: {counted(problems, 'problem')}"
        if self.fits is None:
            return "UNKNOWN: the files agree with each other, but it is not known which names loaders read"
        return "COMPLETE: loaders find everything that config.json asks for, and read everything in the files"

    def _consistent_text(self) -> str:
        if self.whole_shapes.confirmed:
            return "CONSISTENT, whole shapes confirmed: nothing contradicts the strategy"
        return f"CONSISTENT, {NOT_CONFIRMED}: a strategy that cuts other axes may be consistent, too"

    def _result(self, check: str) -> str:
        if check in self.not_checked:
            return "not checked"
        severities = [finding.severity for finding in self.findings if finding.check == check]
        counts = [counted(severities.count(each), each) for each in Severity if each in severities]
        return ", ".join(counts) or "ok"
