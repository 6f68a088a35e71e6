"""Which target of Megatron's files of ranks a request asks for."""

from collections.abc import Mapping
from typing import Any

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.layouts.iteration_option import IterationOptions, last_name
from reshard.core.layouts.megatron.names import parse_iteration
from reshard.core.layouts.megatron.options import MegatronOptions
from reshard.core.layouts.megatron.plan_fields import decoded_common, number_in_plan
from reshard.core.layouts.megatron.sizes import ParallelSizes
from reshard.core.layouts.megatron.target import MegatronTarget
from reshard.core.layouts.options import own_options
from reshard.core.layouts.torch_dist.common import common_beside

_KIND = "Megatron"
_SIZE_FIELDS = ("tensor", "pipeline", "virtual", "expert", "expert_tensor")


def choose_target(options: Any, catalog: CheckpointCatalog) -> MegatronTarget:
    """Return the record of the target that a request asks for, whose iteration is known.

    Raises:
        CatalogError: what Megatron saved beside the source's tensors is damaged.
        StorageError: it cannot be read.
    """
    own = own_options(options, MegatronOptions)
    number = own_options(options, IterationOptions).iteration
    name = last_name(options.target)
    return MegatronTarget(
        sizes=ParallelSizes(
            own.tensor_parallel,
            own.pipeline_parallel,
            own.virtual_pipeline,
            own.expert_parallel,
            own.expert_tensor_parallel or own.tensor_parallel,
        ),
        ends=(own.pipeline_first_layers, own.pipeline_last_layers),
        iteration=int(number or 0),
        tracked=parse_iteration(name) is None,
        heads=own.attention_heads,
        vocabulary=own.pad_vocab_to,
        common=common_beside(catalog),
    )


def target_from_fields(fields: Mapping[str, Any]) -> MegatronTarget:
    """Return the record in a plan's document.

    Raises:
        ValueError: it is damaged.
    """
    sizes = {name: number_in_plan(fields["sizes"][name], _KIND, 1) for name in _SIZE_FIELDS}
    if sizes["tensor"] % sizes["expert_tensor"]:
        raise ValueError("invalid sizes of tensor parallelism")
    first, last = fields["ends"]
    return MegatronTarget(
        ParallelSizes(**sizes),
        (number_in_plan(first, _KIND, 0), number_in_plan(last, _KIND, 0)),
        number_in_plan(fields["iteration"], _KIND, 0),
        bool(fields["tracked"]),
        number_in_plan(fields["heads"], _KIND, 0),
        number_in_plan(fields["vocabulary"], _KIND, 0),
        decoded_common(fields["common"], _KIND),
    )
