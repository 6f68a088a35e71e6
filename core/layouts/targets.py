"""The layouts' answers about targets, each in the module `target_side` of its package."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from reshard.core.changes.changes import Changes, Fp8
from reshard.core.errors import PlanError
from reshard.core.layouts.documents import DocumentKind
from reshard.core.layouts.registry import TargetLayout
from reshard.core.layouts.target_side import TargetSide
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.storage.publishing import SIGNATURE_NAME
from reshard.core.text.options import option


@cache
def side_named(name: str) -> TargetSide:
    """Return the answers of the layout of this name."""
    side: TargetSide = import_module(f"reshard.core.layouts.{name}.target_side").SIDE
    return side


@cache
def all_sides() -> tuple[TargetSide, ...]:
    """Return the answers of all layouts."""
    return tuple(map(side_named, TargetLayout))


def side_of(value: PlannedLayout) -> TargetSide:
    """Return the answers about the target of a plan that is to be written."""
    return side_named(value.name)


def plan_fields(value: PlannedLayout) -> dict[str, Any]:
    """Return what the JSON document of a plan says of its target's layout."""
    blank = {key: each for side in all_sides() for key, each in side.blank_plan_fields.items()}
    return blank | value.plan_fields()


def layout_from_plan(document: Mapping[str, Any]) -> PlannedLayout:
    """Return the record of the target's layout in the JSON document of a plan.

    Raises:
        ValueError: it is damaged, or there are several.
    """
    others = [side.from_plan(document) for side in all_sides() if side.record.name != TargetLayout.RANKS]
    found = [value for value in others if value is not None]
    if len(found) > 1:
        raise ValueError(f"its target has several layouts: {', '.join(each.name for each in found)}")
    value = found[0] if found else side_named(TargetLayout.RANKS).from_plan(document)
    assert value is not None
    return value


@cache
def document_kind(name: str) -> DocumentKind:
    """Return what a document or companion of this name is, in any layout that has one of it."""
    kinds = (each for side in all_sides() for each in (side.documents, side.companions) if name in each)
    return next(kinds)[name]


@cache
def companion_names() -> frozenset[str]:
    """Return the names of all files that any layout's targets may have beside them, copied from elsewhere."""
    return frozenset(name for side in all_sides() for name in side.companions)


def is_document_name(name: str) -> bool:
    """True for the name of a document, such as an index, that a conversion writes beside files of tensors."""
    return any(name in side.documents for side in all_sides())


def is_target_name(name: str) -> bool:
    """True for the name of any file that a conversion writes outside of rank folders: of tensors, documents, signature.

    Files copied from elsewhere are `companion_names`.
    """
    return is_tensor_file(name) or is_document_name(name) or name == SIGNATURE_NAME


def is_tensor_file(name: str) -> bool:
    """True for the name of a file of tensors that a conversion writes outside of rank folders."""
    return any(side.owns(name) for side in all_sides())


def side_of_file(path: str) -> TargetSide:
    """Return the answers of the layout whose targets have a file of tensors at this path below them."""
    return next((side for side in all_sides() if side.owns(path)), side_named(TargetLayout.RANKS))


def float8_layouts() -> tuple[str, ...]:
    """Return the names of the layouts whose targets can hold floats of 8 bits."""
    return tuple(side.record.name for side in all_sides() if side.record.carries_float8)


def check_quantizes(changes: Changes, layout: PlannedLayout) -> None:
    """Refuse to quantize parameters on the way to a target that cannot say how they are.

    Raises:
        PlanError: it is asked for, of such a layout.
    """
    if changes.fp8 is Fp8.QUANTIZE and not layout.quantizes:
        names = [side.record.name for side in all_sides() if side.record.quantizes]
        choices = " or ".join(option("layout", name) for name in names)
        raise PlanError(f"{option('fp8', Fp8.QUANTIZE)}: only valid with {choices}")
