"""Options of a conversion that is planned, or loaded as arrays, and never written."""

from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.fields import Url


class PlanRequest(ConversionRequest):
    """Plan a conversion; without a target, nothing is checked there."""

    target: Url = ""
