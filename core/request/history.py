"""Options of the page of conversions."""

from pydantic import Field

from reshard.core.options.validation import RequestModel


class HistoryRequest(RequestModel):
    """Show the conversions of a server, and their totals, on one page."""

    days: int = Field(default=30, ge=1, le=3650, title="Days", description="Count the conversions of this many days.")
    rows: int = Field(
        default=100, ge=1, le=1000, title="Rows", description="List this many conversions, the latest first."
    )
