"""Options of a target that only rank folders know."""

from pydantic import Field

from reshard.core.layouts.options import LayoutOptions
from reshard.core.layouts.registry import TargetLayout
from reshard.core.options.fields import Prefix
from reshard.core.options.validation import RequestModel


class RanksOptions(RequestModel):
    """How the files of ranks are named."""

    prefix: Prefix = Field(
        default="checkpoint_", title="File prefix", description="Target files are rank_{r}/{prefix}{r}.{format}."
    )


OPTIONS = LayoutOptions(name=TargetLayout.RANKS, description="one file per target rank.", model=RanksOptions)
