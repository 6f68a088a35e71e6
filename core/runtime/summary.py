"""The base of summaries: typed results, for tables, JSON and programs."""

from pydantic import BaseModel, ConfigDict


class Summary(BaseModel):
    """A typed result, shown to users as a table or as JSON."""

    model_config = ConfigDict(frozen=True, defer_build=True)


RANK, FILE = "rank", "file"
"""Kinds of target units: a device's file, or a file that is no device's."""
