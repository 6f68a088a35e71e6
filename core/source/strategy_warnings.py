"""Warns that a strategy may not be its checkpoint's own, though a conversion by it can be planned.

Names and shapes fit many a wrong strategy: protobuf ones hold no shapes, and a parameter missing on a rank may have
been removed as redundant. But under a wrong strategy ranks hold the same where they should hold different slices, or
the other way round. A single such parameter may have a reason of its own, such as experts copied from one, or
statistics that every rank gathers for itself: that is a warning. A conversion is refused if most parameters contradict
the strategy, in all stages or in one.

The same samples may show that every rank holds whole tensors (`integrated_save`), or that ranks said to hold whole
tensors hold slices. Then the conversion is refused with the option that decides; samples never decide its result.
"""

from collections.abc import Mapping, Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.dense_view import first_file
from reshard.core.errors import StrategyError
from reshard.core.plan.model import ParameterMatch
from reshard.core.plan.stage_shards import SourceShards, StageShards, integrated_by_shapes
from reshard.core.plan.whole_shapes import Whole
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.wording import listed
from reshard.core.source.findings import Finding, Severity
from reshard.core.source.sample_checks import SampleFindings, sample_findings
from reshard.core.source.shape_checks import similarity_findings
from reshard.core.source.sibling_checks import sibling_findings
from reshard.core.source.strategy_checks import stage_findings
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import source_option, spelled

WARNING = "is this strategy the checkpoint's own? "
"""How each warning begins."""
_SAMPLES = 64
"""Shared by the stages: sampling opens the files of thousands of ranks."""
_MIN_SAMPLES = 4
"""For each stage. Remote and encrypted files get no more at first: each sample takes requests, or much decryption."""
_COSTLY_STAGES = 4
"""So many stages of remote and encrypted files are sampled."""
_MIN_CONTRADICTING = 2


def strategy_warnings(
    catalog: CheckpointCatalog,
    source: Strategy,
    *,
    integrated_save: IntegratedSave,
    trusted: bool,
    shards: SourceShards | None = None,
) -> tuple[tuple[str, ...], SampleFindings]:
    """Warnings for the user, none if everything agrees with the strategy; and the findings of samples.

    Checks the names and shapes of all parameters, and the beginnings of some contents. If the strategy is `trusted`,
    every contradiction is a warning. `shards` are the source's, if they are grouped already.

    Raises:
        StrategyError: most of the sampled contents, of all stages or of one, contradict the strategy.
        CatalogError: a file is not laid out as assumed.
        StorageError: a file cannot be read.
    """
    by_name = (shards or SourceShards(catalog, source)).by_name
    samples = _sampled(catalog, source, by_name, may_be_whole=integrated_save is not IntegratedSave.AUTO)
    findings = list(samples.found)
    refutation = _refutation(samples)
    if refutation and not trusted:
        raise StrategyError(
            f"{source.origin}: is not the strategy of the checkpoint {catalog.url}: {refutation}:\n  "
            + "\n  ".join(f"{finding.found}: {finding.means}" for finding in findings)
            + "\nName the strategy of the job that saved the checkpoint; 'reshard doctor' tells more. If ranks are "
            f"meant to hold this, pass {source_option('trust_strategy', True)}"
        )
    may_be_whole = samples.whole or integrated_save is IntegratedSave.YES
    if not may_be_whole and not integrated_by_shapes(by_name, None, {}):
        findings += similarity_findings(by_name)
    findings += [finding for finding in stage_findings(catalog, source) if finding.severity is Severity.PROBLEM]
    return _warnings(findings), samples


def sibling_warnings(wholes: Mapping[str, Whole]) -> tuple[str, ...]:
    """Warnings for the user about whole shapes that contradict those of other parameters."""
    return _warnings(sibling_findings(wholes))


def _warnings(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(f"{WARNING}{finding.found}: {finding.means}. 'reshard doctor' tells more" for finding in findings)


def integrated_save_warnings(
    catalog: CheckpointCatalog,
    source: Strategy,
    match: ParameterMatch,
    asked: IntegratedSave,
    *,
    samples: SampleFindings | None = None,
    trusted: bool | None = None,
    shards: SourceShards | None = None,
) -> tuple[str, ...]:
    """Warnings for the user where samples contradict that ranks hold whole tensors, or slices.

    `samples` are read if they are None and matter. `trusted` is `trust_strategy`; None where there is no such option.
    `shards` are the source's, if they are grouped already.

    Raises:
        StrategyError: samples contradict it, and the strategy is not `trusted`.
        CatalogError: a file is not laid out as assumed.
        StorageError: a file cannot be read.
    """
    if not match.integrated and (match.shapes_decide or asked is IntegratedSave.NO):
        return ()
    if samples is None:
        by_name = (shards or SourceShards(catalog, source)).by_name
        samples = _sampled(catalog, source, by_name, may_be_whole=True)
    contradiction, advice = _contradiction(source, match, asked, samples)
    if not contradiction:
        return ()
    if not trusted:
        if match.integrated and trusted is not None:
            advice += f", or {source_option('trust_strategy', True)} to take one rank's values"
        raise StrategyError(f"{catalog.url}: {contradiction}{advice}")
    outcome = "One rank's values are taken" if match.integrated else "The strategy is followed"
    on_one_line = contradiction.replace("\n  ", " ").replace("\n", ". ")
    return (spelled(f"{WARNING}{on_one_line}{outcome}"),)


def _contradiction(
    source: Strategy, match: ParameterMatch, asked: IntegratedSave, samples: SampleFindings
) -> tuple[str, str]:
    """Samples that contradict taking ranks to hold whole tensors, or slices, and advice; empty if none does."""
    whole, slices = (source_option("integrated_save", each) for each in ("yes", "no"))
    if match.integrated and samples.sliced:
        says = f"{whole} says" if asked is IntegratedSave.YES else "the shape of a parameter shows"
        found = f"{says} that every rank holds whole tensors, but they differ between ranks:{_lines(samples.sliced)}"
        return found, f"Pass {slices} if ranks hold slices of the strategy {source.origin}"
    if not match.integrated and samples.whole:
        found = (
            f"ranks hold the same where the strategy {source.origin} gives them different slices:"
            f"{_lines(samples.whole)}Either every rank was saved whole (integrated_save=True), or slices are equal "
            "(experts copied from one, layers initialized from one seed); no known shape decides it. "
        )
        advice = f"Pass {whole} to take each rank's tensors as whole, or {slices} to join them as slices"
        return found, advice
    return "", ""


def _lines(details: Sequence[str]) -> str:
    return "\n  " + listed(details, separator="\n  ") + "\n"


def _sampled(
    catalog: CheckpointCatalog, source: Strategy, shards: Mapping[str, Sequence[StageShards]], *, may_be_whole: bool
) -> SampleFindings:
    """Samples of the contents; of remote and encrypted files a few, unless these contradict the strategy."""
    stage_count = len(source.stages)
    if source_key() is None and first_file(catalog).store.is_near:
        return sample_findings(catalog, shards, limit=_samples_of_each(stage_count), may_be_whole=may_be_whole)

    def sampled(limit: int) -> SampleFindings:
        return sample_findings(catalog, shards, limit=limit, stage_limit=_COSTLY_STAGES, may_be_whole=may_be_whole)

    few = sampled(_MIN_SAMPLES)
    if not _refutation(few) and not few.whole:
        return few
    # the largest may all be experts copied from one: a refusal has to rest on more
    return sampled(_samples_of_each(min(stage_count, _COSTLY_STAGES)))


def _samples_of_each(stage_count: int) -> int:
    return max(_MIN_SAMPLES, _SAMPLES // stage_count)


def _refutation(samples: SampleFindings) -> str:
    """A clause if most contents of all stages, or of one, contradict the strategy; else empty."""
    counts = {"": (sum(samples.contradicting.values()), sum(samples.compared.values()))}
    for stage, contradicting in samples.contradicting.items():
        counts[f" of stage {stage}"] = contradicting, samples.compared[stage]
    for where, (contradicting, compared) in counts.items():
        if contradicting >= _MIN_CONTRADICTING and 2 * contradicting > compared:
            return f"{contradicting} of {compared} parameters{where} whose contents were looked at contradict it"
    return ""
