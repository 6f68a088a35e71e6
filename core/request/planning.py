"""What a user may ask of a conversion that is planned, or loaded as arrays, and never written."""

from reshard.core.request.conversion import ConversionRequest


class PlanRequest(ConversionRequest):
    """Plan a conversion; without a target, nothing is checked there."""

    target: str = ""
