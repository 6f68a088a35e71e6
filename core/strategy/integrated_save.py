"""The option that says if ranks hold whole tensors."""

from enum import StrEnum
from typing import Annotated, Any

from reshard.core.options.written import Written, plain


class IntegratedSave(StrEnum):
    """MindSpore's `integrated_save`: every source rank holds whole tensors, whatever its strategy says."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"


def _from_bool(value: Any) -> Any:
    value = plain(value)
    if not isinstance(value, bool):
        return value
    return IntegratedSave.YES if value else IntegratedSave.NO


YesOrNo = Annotated[IntegratedSave, Written(_from_bool, "IntegratedSaveName | bool")]
"""MindSpore's own argument is True or False."""
