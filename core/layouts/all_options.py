"""The options that the layouts declare, each in the module `options` of its package."""

from importlib import import_module

from reshard.core.layouts.options import LayoutOptions
from reshard.core.layouts.registry import TargetLayout


def layout_options_of(name: str) -> LayoutOptions:
    """Return what the layout of this name declares."""
    declared: LayoutOptions = import_module(f"reshard.core.layouts.{name}.options").OPTIONS
    return declared


LAYOUT_OPTIONS = tuple(map(layout_options_of, TargetLayout))
"""In the order of the values of `layout`."""
