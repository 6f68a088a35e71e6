"""What a request names and does not hold, put in force: the options of its storages, and its keys."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from reshard.core.request.conversion import ConversionOptions
from reshard.core.runtime.keys import KeyNames, named_keys
from reshard.core.runtime.metadata import metadata_limited
from reshard.core.runtime.named_values import Resolver
from reshard.core.storage.named_options import Pairs, named_storages


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


def key_names(request: ConversionOptions) -> KeyNames:
    """The keys that a request names."""
    return KeyNames(request.decrypt_key, request.decrypt_mode, request.encrypt_key, request.encrypt_mode)


@contextmanager
def storages_of(request: ConversionOptions, resolvers: Mapping[str, Resolver] | None = None) -> Iterator[None]:
    """Opens what a request names with the storage options that it names; see `named_storages`."""
    with named_storages(storage_pairs(request), resolvers):
        yield


def storage_pairs(request: ConversionOptions) -> Pairs:
    """The URLs of a request, and the names of the options that open them."""
    source, target = request.source_storage, request.target_storage
    return (
        (request.source, source),
        (request.source_strategy, source),
        (request.changes, source),
        (request.target, target),
        (request.target_strategy, target),
    )
