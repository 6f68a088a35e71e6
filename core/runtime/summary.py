"""The base of summaries: typed results, for tables, JSON and programs."""

from pydantic import BaseModel, ConfigDict


class Summary(BaseModel):
    """What a program gets, and a user sees as a table or as JSON."""

    model_config = ConfigDict(frozen=True)


RANK, FILE = "rank", "file"
"""What is counted as a rank: a device's file, or one of a unified checkpoint."""
