"""Options of a conversion that somebody has to approve."""

from typing import Annotated

from pydantic import Field

from reshard.core.request.conversion import ConversionRequest


class ApprovedConversionRequest(ConversionRequest):
    """Convert a checkpoint when somebody has seen the plan and agrees."""

    approval_seconds: Annotated[
        int,
        Field(
            title="Time to decide",
            ge=10,
            le=31_536_000,
            description="Seconds after which the run fails if nobody has decided; 259200 is three days.",
        ),
    ] = 259_200

    def conversion(self) -> ConversionRequest:
        """Return the conversion that is to be approved."""
        return ConversionRequest(**{name: getattr(self, name) for name in ConversionRequest.model_fields})
