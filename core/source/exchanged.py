"""Recognizes a source strategy and a target strategy that were exchanged on the command line."""

from collections.abc import Iterator
from contextlib import contextmanager

from reshard.core.errors import CatalogError, InputError, PlanError, ReshardError, StrategyError
from reshard.core.layouts.survey import survey
from reshard.core.request.source import DiagnosisRequest, SourceRequest
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option


@contextmanager
def naming_exchanged(request: SourceRequest, target: Strategy | None) -> Iterator[None]:
    """Say in errors inside the block that the strategies are exchanged, if only the target's fits the source."""
    try:
        yield
    except (CatalogError, PlanError, StrategyError) as error:
        if target is None or not _are_exchanged(request, target):
            raise
        raise type(error)(f"{_text(request, target)}:\n{error.marked}") from error


def check_not_exchanged(request: SourceRequest, target: Strategy | None) -> None:
    """Raise StrategyError if the target's strategy fits the source, and the source's does not."""
    if target is not None and _are_exchanged(request, target):
        raise StrategyError(f"{_text(request, target)}. If they are right, pass {option('trust_strategy', True)}")


def _text(request: SourceRequest, target: Strategy) -> str:
    return (
        f"{option('source_strategy')} and {option('target_strategy')} seem to be exchanged: {target.origin}, given as "
        f"the target's, fits the source {request.source}, and {request.source_strategy} does not"
    )


def _are_exchanged(request: SourceRequest, target: Strategy) -> bool:
    if not request.source_strategy:
        return False
    try:
        has_its_ranks = set(survey(request.source, request.step).ranks) == set(target.ranks)
        return has_its_ranks and _fits(request, target.origin) and not _fits(request, request.source_strategy)
    except ReshardError:
        return False  # the error that this was to explain stays


def _fits(request: SourceRequest, strategy: str) -> bool:
    from reshard.core.source.diagnosis import diagnose  # opens sources itself

    try:
        given = request.model_dump(include={"source", "step", "source_prefix", "root", "integrated_save"})
        diagnosis = diagnose(DiagnosisRequest.model_validate(given | {"source_strategy": strategy}))
    except InputError:
        return False
    return bool(diagnosis.fits)
