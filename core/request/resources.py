"""Activates what a request names: the options of its storages, and its keys."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from reshard.core.changes.option_types import is_own_preset
from reshard.core.layouts.all_options import LAYOUT_OPTIONS
from reshard.core.options.fields import URL_METAVAR, metavar_of
from reshard.core.request.conversion import ConversionOptions
from reshard.core.request.pem_files import read_pem
from reshard.core.request.source import DiagnosisRequest, SourceRequest
from reshard.core.runtime.bandwidth import bandwidth_limited, parse_bandwidth
from reshard.core.runtime.keys import KeyNames, named_keys
from reshard.core.runtime.metadata import metadata_limited
from reshard.core.runtime.named_values import Resolver, is_name
from reshard.core.signing.current import SignerNames, named_signer
from reshard.core.signing.trusted import named_trusted
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
        named_signer(signer_names(request), resolvers, partial(read_pem, "sign_certificate")),
        named_trusted(_trusted_name(request), resolvers),
    ):
        yield


def names_in(request: Naming) -> tuple[str, ...]:
    """Return all names of storages and keys in a request; empty ones are not set."""
    keys, signer = key_names(request), signer_names(request)
    secrets = keys.source, keys.target, signer.key, signer.passphrase
    return *(name for _, name in storage_pairs(request)), *secrets, _trusted_name(request)


def key_names(request: Naming) -> KeyNames:
    """Return the names of a request's keys."""
    if isinstance(request, SourceRequest):
        return KeyNames(request.decrypt_key, request.decrypt_mode)
    return KeyNames(request.decrypt_key, request.decrypt_mode, request.encrypt_key, request.encrypt_mode)


def signer_names(request: Naming) -> SignerNames:
    """Return what a request says about its target's signature."""
    if isinstance(request, SourceRequest):
        return SignerNames()
    return SignerNames(request.sign, request.sign_passphrase, request.sign_certificate)


def _trusted_name(request: Naming) -> str:
    """The name under which the keys of a source's signers are kept; empty if there is none."""
    named = "" if isinstance(request, SourceRequest) else request.require_signed_by
    return named if is_name(named) else ""


@contextmanager
def storages_of(request: Naming, resolvers: Mapping[str, Resolver] | None = None) -> Iterator[None]:
    """Open a request's URLs with the storage options that it names; see `named_storages`."""
    with named_storages(storage_pairs(request), resolvers):
        yield


def storage_pairs(request: Naming) -> Pairs:
    """Return the URLs of a request with the names of their storage options."""
    storage = request.source_storage
    beside_source = [request.source, request.source_strategy]
    if isinstance(request, DiagnosisRequest):
        beside_source += [_own_preset(request.preset), request.training_config, request.like]
    if isinstance(request, SourceRequest):
        return tuple((url, storage) for url in beside_source)
    beside_source += [request.changes, *(getattr(request, name) for name in _URLS_OF_LAYOUTS)]
    beside_source += [_own_preset(request.preset), request.training_config, request.config_json, request.lora]
    beside_source.append(request.require_signed_by)
    target = (request.target, request.target_storage), (request.target_strategy, request.target_storage)
    certificate = request.sign_certificate, request.target_storage
    return (*((url, storage) for url in beside_source), certificate, *target)


def _own_preset(preset: str) -> str:
    """The URL of a preset of the user's own; empty for another."""
    return preset if is_own_preset(preset) else ""
