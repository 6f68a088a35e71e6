"""What a request names and does not hold, put in force: the options of its storages, and its keys."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from reshard.core.request.conversion import ConversionOptions
from reshard.core.runtime.keys import key_names, named_keys
from reshard.core.runtime.metadata import metadata_limited
from reshard.core.runtime.named_values import Resolver
from reshard.core.storage.named_options import storages_of


@contextmanager
def resources_of(request: ConversionOptions, resolvers: Mapping[str, Resolver] | None = None) -> Iterator[None]:
    """Makes a request's storages and keys known inside the block, and sets its memory limit.

    Raises:
        InputError: a name cannot be resolved, or what it stands for cannot be used.
    """
    with (
        metadata_limited(request.memory_limit_bytes),
        storages_of(request, resolvers),
        named_keys(key_names(request), resolvers),
    ):
        yield
