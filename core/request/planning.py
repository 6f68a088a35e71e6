"""Options of a conversion that is planned, or loaded as arrays, and never written."""

from reshard.core.options.fields import Url
from reshard.core.request.conversion import ConversionRequest

ASSUMED_RATE_BYTES = 2**30
"""Bytes read or written in a second, if a user names no other rate; a good disk does more, a busy network less."""


class PlanRequest(ConversionRequest):
    """Plan a conversion; without a target, nothing is checked there."""

    target: Url = ""
