"""Joins of parts, from loose arguments."""

from collections.abc import Sequence

from reshard.core.conversion import join_stages
from reshard.core.conversion.join_stages import JoinReport, resources_to_join
from reshard.core.options.validation import build_options
from reshard.core.request.joining import JoinRequest
from reshard.core.runtime.progress import Progress


def join_parts(parts: Sequence[str], target: str, progress: Progress | None = None, **options: object) -> JoinReport:
    """Join parts as a request with these options says."""
    request = build_options(JoinRequest, parts=list(parts), target=target, **options)
    with resources_to_join(request):
        return join_stages.join_parts(request, progress)
