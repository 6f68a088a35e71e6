"""The signature that a conversion may require of its source: checked before a byte of the target is written."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from reshard.core.checkpoint.manifest import PLAN_NAME
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.resources import storage_pairs
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.read_log import documents_planned_from
from reshard.core.storage.urls import parse_url

if TYPE_CHECKING:
    from reshard.core.custody.signed_source import SignedSource, SourceGuard


def source_guard(request: ConversionRequest) -> "SourceGuard | None":
    """Look at a request's source before it is planned with; None if it needs no signature. Raises as `SourceGuard.of`.

    Plan with what is there only after this.
    """
    if not request.require_signed_by:
        return None
    from reshard.core.custody.signed_source import SourceGuard  # with cryptography, which plain conversions do not need

    return SourceGuard.of(request.source, request.require_signed_by)


def signed_source(
    guard: "SourceGuard | None", request: ConversionRequest, plan: ConversionPlan
) -> "tuple[ConversionPlan, SignedSource | None]":
    """Check that the signature covers what a plan reads; return the plan with a note on it. Raises as `cover`."""
    if guard is None:
        return plan, None
    signed = guard.cover(plan.inputs.catalog, documents_planned_from(), recovers=request.recover)
    return plan.with_notes(*signed.notes(list(_named(request, plan, signed)))), signed


def _named(request: ConversionRequest, plan: ConversionPlan, signed: "SignedSource") -> Iterator[str]:
    """Yield URLs of what is read for the source besides its directory."""
    others = {request.source, request.target, request.target_strategy, request.require_signed_by}
    yield from {url for url, _ in storage_pairs(request)} - {"", *others}
    strategy = plan.inputs.source_strategy
    has_own = any(file.location == signed.directory.child(STATE_DIRECTORY, PLAN_NAME) for file in signed.files)
    if strategy is not None and strategy.origin and not request.source_strategy and not has_own:
        yield str(parse_url(strategy.origin))
