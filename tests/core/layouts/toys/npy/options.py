"""The option that only targets of this layout have."""

from typing import Annotated

from pydantic import Field

from reshard.core.layouts.options import LayoutOptions
from reshard.core.options.fields import Metavar
from reshard.core.options.validation import RequestModel


class NpyOptions(RequestModel):
    """How files begin."""

    npy_version: Annotated[int, Metavar("1|2")] = Field(default=1, ge=1, le=2, description="Version of the heads.")


OPTIONS = LayoutOptions(
    "npy", "a .npy file for each tensor.", NpyOptions, suffix=".npy", refused={"write_crc": "arrays carry no CRC"}
)
