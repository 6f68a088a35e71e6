"""Names of storage options and keys that Prefect keeps, `block:NAME`, looked up outside of flows."""

from collections.abc import Mapping

from reshard.core.runtime.named_values import Resolver


def resolvers_for(*names: str) -> Mapping[str, Resolver]:
    """The resolver of blocks, if one of these names is a block's: looking it up loads Prefect."""
    return {"block": _options_of_block} if any(name.startswith("block:") for name in names) else {}


def _options_of_block(name: str) -> object:
    # importing Prefect takes a second
    from reshard.flows.embedded_server import using_a_server
    from reshard.tasks.storages import options_of_block

    with using_a_server():
        return options_of_block(name)
