"""Which universal checkpoint a request asks for, and how many steps its optimizer has made."""

from collections.abc import Mapping
from typing import Any

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.layouts.any_layout import numbers_beside
from reshard.core.layouts.iteration_option import IterationOptions, last_name
from reshard.core.layouts.megatron.plan_fields import decoded_common, number_in_plan
from reshard.core.layouts.options import own_options
from reshard.core.layouts.state_numbers import OPTIMIZER_STEP
from reshard.core.layouts.universal.names import parse_tag
from reshard.core.layouts.universal.options import MAX_OPTIMIZER_STEP, UniversalOptions
from reshard.core.layouts.universal.target import UniversalTarget
from reshard.core.layouts.universal.training import training_beside

_KIND = "universal"


def choose_target(request: Any, catalog: CheckpointCatalog) -> UniversalTarget:
    """Return the record of the target that a request asks for, whose number is known.

    Raises:
        CatalogError: what is beside the source's tensors is damaged.
        StorageError: they cannot be read.
    """
    number = own_options(request, IterationOptions).iteration
    given = own_options(request, UniversalOptions).optimizer_step
    return UniversalTarget(
        iteration=int(number or 0),
        tracked=parse_tag(last_name(request.target)) is None,
        optimizer_step=given or _source_step(catalog),
        training=training_beside(catalog),
    )


def target_from_fields(fields: Mapping[str, Any]) -> UniversalTarget:
    """Return the record in a plan's document.

    Raises:
        ValueError: it is damaged.
    """
    return UniversalTarget(
        number_in_plan(fields["iteration"], _KIND, 0, 10**18),
        bool(fields["tracked"]),
        number_in_plan(fields["optimizer_step"], _KIND, 0, MAX_OPTIMIZER_STEP),
        decoded_common(fields["training"], _KIND),
    )


def _source_step(catalog: CheckpointCatalog) -> int:
    """The step that the source's own numbers say; 0 if they do not."""
    step = (numbers_beside(catalog) or {}).get(OPTIMIZER_STEP)
    return int(step) if step is not None and step == int(step) and 0 < step <= MAX_OPTIMIZER_STEP else 0
