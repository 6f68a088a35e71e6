"""Which target of `torch_dist` a request asks for, and what it takes over of the source's training."""

from collections.abc import Mapping
from typing import Any

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.layouts.dcp.options import DEFAULT_SHARDS, MAX_SHARDS
from reshard.core.layouts.iteration_option import IterationOptions, last_name
from reshard.core.layouts.megatron.names import parse_iteration
from reshard.core.layouts.megatron.plan_fields import decoded_common, number_in_plan
from reshard.core.layouts.options import own_options
from reshard.core.layouts.torch_dist.common import (
    common_beside,
    has_plain_optimizer,
    source_args,
    wants_numbered_layers,
)
from reshard.core.layouts.torch_dist.options import TorchDistOptions, TransformerImpl
from reshard.core.layouts.torch_dist.target import TorchDistTarget

_KIND = "torch_dist"


def choose_target(options: Any, catalog: CheckpointCatalog) -> TorchDistTarget:
    """Return the record of the target that a request asks for, whose iteration is known.

    Raises:
        CatalogError: what Megatron saved beside the source's tensors is damaged.
        StorageError: it cannot be read.
    """
    own = own_options(options, TorchDistOptions)
    number = own_options(options, IterationOptions).iteration
    common = common_beside(catalog)
    impl = own.transformer_impl
    named = source_args(common).get("transformer_impl") if impl is TransformerImpl.SOURCE else impl
    return TorchDistTarget(
        shards=own.shards or DEFAULT_SHARDS,
        iteration=int(number or 0),
        tracked=parse_iteration(last_name(options.target)) is None,
        is_local=named == TransformerImpl.LOCAL,
        is_plain=has_plain_optimizer(common),
        numbers_layers=wants_numbered_layers(common),
        heads=own.attention_heads,
        common=common,
    )


def target_from_fields(fields: Mapping[str, Any]) -> TorchDistTarget:
    """Return the record in a plan's document.

    Raises:
        ValueError: it is damaged.
    """
    return TorchDistTarget(
        shards=number_in_plan(fields["shards"], _KIND, 1, MAX_SHARDS),
        iteration=number_in_plan(fields["iteration"], _KIND, 0, 10**18),
        tracked=bool(fields["tracked"]),
        is_local=bool(fields["is_local"]),
        is_plain=bool(fields["is_plain"]),
        numbers_layers=bool(fields["numbers_layers"]),
        heads=number_in_plan(fields["heads"], _KIND, 0, 1 << 40),
        common=decoded_common(fields["common"], _KIND),
    )
