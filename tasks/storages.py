"""Storage options in blocks of Prefect, `block:NAME`: Prefect keeps them encrypted, and runs hold only their name."""

from typing import Any

import httpx
from prefect.blocks.core import Block
from prefect.blocks.system import Secret
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.filesystems import RemoteFileSystem

from reshard.core.errors import ConversionError, InputError
from reshard.core.runtime.named_values import Resolver


def options_of_block(name: str) -> Any:
    """Return the value of a Secret block, or else the settings of a RemoteFileSystem block.

    Raises:
        InputError: there is no such block.
        ConversionError: Prefect's server does not answer.
    """
    secret = _loaded(Secret, name)
    if secret is not None:
        return secret.get()
    files = _loaded(RemoteFileSystem, name)
    if files is not None:
        return files.settings
    raise InputError("Prefect has no Secret and no RemoteFileSystem block of that name")


RESOLVERS: dict[str, Resolver] = {"block": options_of_block}


def _loaded(kind: type[Block], name: str) -> Any:
    try:
        return kind.load(name, _sync=True)  # type: ignore[call-arg]
    except ValueError as error:
        if isinstance(error.__cause__, ObjectNotFound):
            return None
        raise InputError(f"the block cannot be used: {type(error).__name__}") from None
    except (httpx.HTTPError, PrefectException, RuntimeError) as error:
        raise ConversionError(f"block:{name}: cannot be loaded from Prefect: {error}") from error
