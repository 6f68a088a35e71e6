"""Whether a strategy may not be its checkpoint's own, though a conversion by it can be planned.

Names and shapes fit many a wrong strategy: protobuf ones tell no shapes, and what a rank lacks may have been removed as
redundant. But under a wrong one ranks hold the same where they should hold different slices, or the other way round.
One parameter of which that is so may have a reason of its own, such as experts that were copied of one, or statistics
that every rank gathers for itself: that is told. If it is so of most, in all stages or in one, a conversion is refused.
"""

from collections.abc import Iterable, Mapping, Sequence

from core.checkpoint.records import CheckpointCatalog
from core.content_misfits import ContentMisfits, content_misfits
from core.errors import StrategyError
from core.held import HeldParameter, held_by_stages, is_integrated, names_in_order
from core.keys import source_key
from core.misfits import Misfit, Severity, likeness_misfits, stage_misfits
from core.storage.urls import parse_url
from core.strategy.model import Strategy

DOUBT = "is this strategy the checkpoint's own? "
"""What each of the sentences begins with."""
_SAMPLED = 64
"""Shared by the stages: the files of thousands of ranks are opened for it."""
_FEWEST_SAMPLED = 4
"""Of a stage. No more at first of files that are not at hand: each sample costs requests, or has much decrypted."""
_COSTLY_STAGES = 4
"""So many are looked at of files that are not at hand."""
_FEWEST_CONTRADICTING = 2


def doubts(catalog: CheckpointCatalog, source: Strategy, *, saved_whole: bool, trusted: bool) -> tuple[str, ...]:
    """Sentences for the user; none if what was looked at is as the strategy says.

    Names and shapes of all parameters are looked at, and the beginnings of some contents. If the strategy is `trusted`,
    all that is found is told.

    Raises:
        StrategyError: most of the contents that were looked at, of all stages or of one, contradict the strategy.
        CatalogError: a file is not laid out as it was assumed to be.
        StorageError: one cannot be read.
    """
    held = held_by_stages(catalog, source, names_in_order(catalog), [])
    contents = _contents(catalog, source, held)
    misfits = _problems(contents.found)
    refutation = _refutation(contents)
    if refutation and not trusted:
        raise StrategyError(
            f"{source.origin}: is not the strategy of the checkpoint {catalog.url}: {refutation}:\n  "
            + "\n  ".join(f"{each.found}: {each.means}" for each in misfits)
            + "\nName the strategy of the job that saved the checkpoint; 'reshard doctor' tells more. If ranks are "
            "meant to hold this, pass --trust-strategy"
        )
    if not saved_whole and not is_integrated(held, None, {}):
        misfits += likeness_misfits(held)
    misfits += _problems(stage_misfits(catalog, source))
    return tuple(map(_doubt, misfits))


def _contents(
    catalog: CheckpointCatalog, source: Strategy, held: Mapping[str, Sequence[HeldParameter]]
) -> ContentMisfits:
    """What samples show: of files that are not at hand a few, unless these contradict the strategy."""
    if source_key() is None and parse_url(catalog.url).is_local:
        return content_misfits(catalog, held, most=_of_each(len(source.stages)))
    few = content_misfits(catalog, held, most=_FEWEST_SAMPLED, most_stages=_COSTLY_STAGES)
    if not _refutation(few):
        return few
    # the largest may all be experts that were copied of one: a refusal has to rest on more
    most = _of_each(min(len(source.stages), _COSTLY_STAGES))
    return content_misfits(catalog, held, most=most, most_stages=_COSTLY_STAGES)


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
