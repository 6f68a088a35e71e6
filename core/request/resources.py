"""Activates what a request names: the options of its storages, and its keys."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from reshard.core.changes.option_types import is_own_preset
from reshard.core.layouts.all_options import LAYOUT_OPTIONS
from reshard.core.options.fields import URL_METAVAR, metavar_of
from reshard.core.request.conversion import ConversionOptions
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.bandwidth import bandwidth_limited, parse_bandwidth
from reshard.core.runtime.keys import KeyNames, named_keys
from reshard.core.runtime.metadata import metadata_limited
from reshard.core.runtime.named_values import Resolver
from reshard.core.storage.named_options import Pairs, named_storages

Naming = ConversionOptions | SourceRequest
"""Requests that name storages and keys."""


_URLS_OF_LAYOUTS = tuple(
    name
    for layout in LAYOUT_OPTIONS
    for name, each in layout.model.model_fields.items()
    if metavar_of(each) == URL_METAVAR.text
)


@contextmanager
def resources_of(request: Naming, resolvers: Mapping[str, Resolver] | None = None) -> Iterator[None]:
    """Activate a request's storages, keys and limits inside the block; an InputError names what is wrong."""
    with (
        metadata_limited(request.memory_limit_bytes),
        bandwidth_limited(parse_bandwidth(request.bandwidth_limit)),
        storages_of(request, resolvers),
        named_keys(key_names(request), resolvers),
    ):
        yield


def names_in(request: Naming) -> tuple[str, ...]:
    """Return all names of storages and keys in a request; empty ones are not set."""
    keys = key_names(request)
    return *(name for _, name in storage_pairs(request)), keys.source, keys.target


def key_names(request: Naming) -> KeyNames:
    """Return the names of a request's keys."""
    if isinstance(request, SourceRequest):
        return KeyNames(request.decrypt_key, request.decrypt_mode)
    return KeyNames(request.decrypt_key, request.decrypt_mode, request.encrypt_key, request.encrypt_mode)


@contextmanager
def storages_of(request: Naming, resolvers: Mapping[str, Resolver] | None = None) -> Iterator[None]:
    """Open a request's URLs with the storage options that it names; see `named_storages`."""
    with named_storages(storage_pairs(request), resolvers):
        yield


def storage_pairs(request: Naming) -> Pairs:
    """Return the URLs of a request with the names of their storage options."""
    storage = request.source_storage
    source = (request.source, storage), (request.source_strategy, storage)
    if isinstance(request, SourceRequest):
        return source
    target = (request.target, request.target_storage), (request.target_strategy, request.target_storage)
    own_preset = request.preset if is_own_preset(request.preset) else ""
    preset = ((url, storage) for url in (own_preset, request.training_config, request.config_json))
    of_layouts = ((getattr(request, name), storage) for name in _URLS_OF_LAYOUTS)
    return (*source, (request.changes, storage), *of_layouts, *preset, *target)
