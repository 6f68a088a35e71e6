"""Whether a strategy may not be its checkpoint's own, though a conversion by it can be planned.

Names and shapes fit many a wrong strategy: protobuf ones tell no shapes, and what a rank lacks may have been removed as
redundant. But under a wrong one ranks hold the same where they should hold different slices, or the other way round.
One parameter of which that is so may have a reason of its own, such as experts that were copied of one, or statistics
that every rank gathers for itself: that is told. If it is so of most, in all stages or in one, a conversion is refused.

The same samples may show that every rank holds whole tensors (`integrated_save`), or that ranks said to hold whole
tensors hold slices. Then the conversion is refused with the option that decides; samples never decide its result.
"""

from collections.abc import Iterable, Mapping, Sequence

from reshard.core.checkpoint.catalog.records import CheckpointCatalog
from reshard.core.errors import StrategyError
from reshard.core.plan.matching import ParameterMatch
from reshard.core.plan.stage_shards import StageShards, integrated_by_shapes, names_in_order, shards_by_stage
from reshard.core.request.conversion import ConversionRequest, IntegratedSave
from reshard.core.runtime.keys import source_key
from reshard.core.source.sample_checks import ContentMisfits, content_misfits
from reshard.core.source.strategy_checks import Misfit, Severity, likeness_misfits, listed, stage_misfits
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.model import Strategy

DOUBT = "is this strategy the checkpoint's own? "
"""What each of the sentences begins with."""
_SAMPLED = 64
"""Shared by the stages: the files of thousands of ranks are opened for it."""
_FEWEST_SAMPLED = 4
"""Of a stage. No more at first of files that are not at hand: each sample costs requests, or has much decrypted."""
_COSTLY_STAGES = 4
"""So many are looked at of files that are not at hand."""
_FEWEST_CONTRADICTING = 2


def doubts(
    catalog: CheckpointCatalog, source: Strategy, *, integrated_save: IntegratedSave, trusted: bool
) -> tuple[tuple[str, ...], ContentMisfits]:
    """Sentences for the user, none if everything agrees with the strategy; and the misfits that samples show.

    Names and shapes of all parameters are looked at, and the beginnings of some contents. If the strategy is `trusted`,
    all that is found is told.

    Raises:
        StrategyError: most of the contents that were looked at, of all stages or of one, contradict the strategy.
        CatalogError: a file is not laid out as it was assumed to be.
        StorageError: one cannot be read.
    """
    held = shards_by_stage(catalog, source, names_in_order(catalog), [])
    contents = _contents(catalog, source, held, may_be_whole=integrated_save is not IntegratedSave.AUTO)
    misfits = list(contents.found)
    refutation = _refutation(contents)
    if refutation and not trusted:
        raise StrategyError(
            f"{source.origin}: is not the strategy of the checkpoint {catalog.url}: {refutation}:\n  "
            + "\n  ".join(f"{each.found}: {each.means}" for each in misfits)
            + "\nName the strategy of the job that saved the checkpoint; 'reshard doctor' tells more. If ranks are "
            "meant to hold this, pass --trust-strategy"
        )
    may_be_whole = contents.whole or integrated_save is IntegratedSave.YES
    if not may_be_whole and not integrated_by_shapes(held, None, {}):
        misfits += likeness_misfits(held)
    misfits += _problems(stage_misfits(catalog, source))
    return tuple(map(_doubt, misfits)), contents


def asked_integrated_save(request: ConversionRequest) -> IntegratedSave:
    """The request's `integrated_save`, or NO for a source read by its own records: reshard writes slices."""
    is_own = not request.source_strategy and request.integrated_save is IntegratedSave.AUTO
    return IntegratedSave.NO if is_own else request.integrated_save


def integrated_save_doubts(
    catalog: CheckpointCatalog,
    source: Strategy,
    match: ParameterMatch,
    asked: IntegratedSave,
    *,
    contents: ContentMisfits | None = None,
    trusted: bool | None = None,
) -> tuple[str, ...]:
    """Sentences for the user where samples contradict whether ranks are taken to hold whole tensors or slices.

    `contents` are the misfits that samples show; None: read them here, if they matter. `trusted` is --trust-strategy;
    None where there is no such option.

    Raises:
        StrategyError: samples contradict it, and the strategy is not `trusted`.
        CatalogError: a file is not laid out as it was assumed to be.
        StorageError: one cannot be read.
    """
    if not match.integrated and (match.shapes_decide or asked is IntegratedSave.NO):
        return ()
    if contents is None:
        held = shards_by_stage(catalog, source, names_in_order(catalog), [])
        contents = _contents(catalog, source, held, may_be_whole=True)
    contradiction, advice = _contradiction(source, match, asked, contents)
    if contradiction and not trusted:
        if match.integrated and trusted is not None:
            advice += ", or --trust-strategy to take one rank's values"
        raise StrategyError(f"{catalog.url}: {contradiction}{advice}")
    outcome = "One rank's values are taken" if match.integrated else "The strategy is followed"
    on_one_line = contradiction.replace("\n  ", " ").replace("\n", ". ")
    return (f"{DOUBT}{on_one_line}{outcome}",) if contradiction else ()


def _contradiction(
    source: Strategy, match: ParameterMatch, asked: IntegratedSave, contents: ContentMisfits
) -> tuple[str, str]:
    """Samples that contradict taking ranks to hold whole tensors, or slices, and advice; empty if none does."""
    if match.integrated and contents.sliced:
        says = "--integrated-save yes says" if asked is IntegratedSave.YES else "the shape of a parameter shows"
        found = f"{says} that every rank holds whole tensors, but they differ between ranks:{_lines(contents.sliced)}"
        return found, f"Pass --integrated-save no if ranks hold slices of the strategy {source.origin}"
    if not match.integrated and contents.whole:
        found = (
            f"ranks hold the same where the strategy {source.origin} gives them different slices:"
            f"{_lines(contents.whole)}Either every rank was saved whole (integrated_save=True), or slices are equal "
            "(experts copied from one, layers initialized from one seed); no known shape decides it. "
        )
        advice = (
            "Pass --integrated-save yes to take each rank's tensors as whole, or --integrated-save no to join them as "
            "slices"
        )
        return found, advice
    return "", ""


def _lines(details: Sequence[str]) -> str:
    return "\n  " + listed(details, "\n  ") + "\n"


def _contents(
    catalog: CheckpointCatalog,
    source: Strategy,
    held: Mapping[str, Sequence[StageShards]],
    *,
    may_be_whole: bool,
) -> ContentMisfits:
    """What samples show: of files that are not at hand a few, unless these contradict the strategy."""
    if source_key() is None and parse_url(catalog.url).is_local:
        return content_misfits(catalog, held, most=_of_each(len(source.stages)), may_be_whole=may_be_whole)
    few = content_misfits(catalog, held, most=_FEWEST_SAMPLED, most_stages=_COSTLY_STAGES, may_be_whole=may_be_whole)
    if not _refutation(few) and not few.whole:
        return few
    # the largest may all be experts that were copied of one: a refusal has to rest on more
    most = _of_each(min(len(source.stages), _COSTLY_STAGES))
    return content_misfits(catalog, held, most=most, most_stages=_COSTLY_STAGES, may_be_whole=may_be_whole)


def _of_each(stage_count: int) -> int:
    return max(_FEWEST_SAMPLED, _SAMPLED // stage_count)


def _refutation(contents: ContentMisfits) -> str:
    """That most contents contradict the strategy, those of all stages or else of one; empty if they do not."""
    counts = {"": (sum(contents.contradicting.values()), sum(contents.compared.values()))}
    for stage, contradicting in contents.contradicting.items():
        counts[f" of stage {stage}"] = contradicting, contents.compared[stage]
    for where, (contradicting, compared) in counts.items():
        if contradicting >= _FEWEST_CONTRADICTING and 2 * contradicting > compared:
            return f"{contradicting} of {compared} parameters{where} whose contents were looked at contradict it"
    return ""


def _problems(misfits: Iterable[Misfit]) -> list[Misfit]:
    return [each for each in misfits if each.severity is Severity.PROBLEM]


def _doubt(misfit: Misfit) -> str:
    return f"{DOUBT}{misfit.found}: {misfit.means}. 'reshard doctor' tells more"
