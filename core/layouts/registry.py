"""The list of layouts."""

from reshard.core.layouts.checkpoint2.options import CHECKPOINT2
from reshard.core.layouts.dcp.options import DCP
from reshard.core.layouts.options import LayoutOptions
from reshard.core.layouts.ranks.options import RANKS
from reshard.core.layouts.unified.options import UNIFIED

LAYOUT_OPTIONS: tuple[LayoutOptions, ...] = (RANKS, UNIFIED, CHECKPOINT2, DCP)
"""What layouts say about the options of a target, in the order of --layout's values; the first is the default."""


def layout_options_of(name: str) -> LayoutOptions:
    """Return what the layout of this name says about the options of a target."""
    return next(each for each in LAYOUT_OPTIONS if each.name == name)
