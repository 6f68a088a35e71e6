"""The names of layouts in requests, manifests and reports."""

from enum import StrEnum


class TargetLayout(StrEnum):
    """The files that the target is made of."""

    RANKS = "ranks"
    UNIFIED = "unified"
    CHECKPOINT2 = "checkpoint2"
    DCP = "dcp"
