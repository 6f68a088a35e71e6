"""The names of files that conversions write, and so may remove, in a target's directory itself."""

from reshard.core.errors import TargetError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.layouts.targets import companion_names, is_target_name
from reshard.core.storage.publishing import IsOwn
from reshard.core.storage.urls import Location


def may_be_own(name: str) -> bool:
    """True for the name of any file that a conversion may write or copy into its working directory."""
    return is_target_name(name) or name in companion_names()


def own_names(directory: Location) -> IsOwn:
    """Return the predicate of own names in a directory: companions only if a manifest there lists them."""
    companions = recorded_companions(directory)
    return lambda name: is_target_name(name) or name in companions


def recorded_companions(directory: Location) -> frozenset[str]:
    """Return the names of the companions that a conversion wrote into a directory; none without a readable manifest."""
    try:
        manifest = read_manifest(directory)
    except TargetError:
        return frozenset()
    return frozenset(each.file for each in manifest.companions) if manifest else frozenset()
