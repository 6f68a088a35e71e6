"""Whether ranks hold whole tensors whatever their strategy says."""

from enum import StrEnum


class IntegratedSave(StrEnum):
    """MindSpore's `integrated_save`: every source rank holds whole tensors, whatever its strategy says."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"
