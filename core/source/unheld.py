"""Parameters that a checkpoint's metadata lists and no file holds, such as those of an optimizer that was not saved."""

import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from reshard.core.changes.changes import Changes
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.layouts.source_layout import ListedParameters
from reshard.core.plan.recipes import excluded_names
from reshard.core.runtime.wording import counted, listed
from reshard.core.text.options import option

_CLASS = re.compile(r"(optimizer\.state\.\w+|adam_[mv]|muon_m|accu_grads|exp_avg\w*|[^.]*?placeholder)\.")
_MAX_CLASSES = 8


def with_unheld_noted(
    catalog: CheckpointCatalog, found: ListedParameters, changes: Changes, allowed: Sequence[str], *, whole: bool
) -> CheckpointCatalog:
    """The catalog with a note on parameters that no file holds.

    `whole`: the target has all parameters of the source, so that each of those has to be excluded by `changes`, or
    `allowed` to be missing by a pattern. With a target's strategy, planning refuses what that needs.

    Raises:
        CatalogError: one is neither.
    """
    if not found.unheld:
        return catalog
    excluded = excluded_names(found.names, changes, set())
    names = [name for name in found.unheld if name not in excluded]
    if not names:
        return catalog
    left = [name for name in names if not any(fnmatchcase(name, each) for each in allowed)]
    if left and whole:
        lists = f"lists {counted(len(left), 'parameter')} that no file holds"
        problem = f"{found.why}; {counted(len(left), 'parameter')} have no names" if found.why else lists
        raise CatalogError(
            f"{found.origin}: {problem}: {_by_class(left)}. Convert "
            f"without them: {option('select', 'weights-only')}, or {option('allow_missing', ['PATTERN'])} for each kind"
        )
    if whole:  # the plan's note lists what the result lacks
        return catalog
    missing = "without names" if found.why else "listed in the metadata, but in NO file"
    note = f"{missing}: {_by_class(names)}"
    return replace(catalog, notes=(*catalog.notes, note))


def _by_class(names: Sequence[str]) -> str:
    """Names grouped by the kind of optimizer state: `adam_m.* (12)`; others one by one."""
    counts = Counter(f"{match[1]}.*" if (match := _CLASS.match(name)) else repr(name) for name in names)
    return listed([f"{each} ({count})" if each.endswith("*") else each for each, count in counts.items()], _MAX_CLASSES)
