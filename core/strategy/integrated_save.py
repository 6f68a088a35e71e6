"""The option that says if ranks hold whole tensors."""

from enum import StrEnum


class IntegratedSave(StrEnum):
    """MindSpore's `integrated_save`: every source rank holds whole tensors, whatever its strategy says."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"
