"""Times in records, which may come from strangers."""

from datetime import UTC, datetime


def parse_moment(text: str) -> datetime | None:
    """Parse a time of a record, as one in UTC; None if it is not a time. Without a zone it is in UTC already."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
