"""Assets of Prefect, behind a setting: the target of a conversion, made from the asset of its source.

`RESHARD_RECORD_ASSETS=1` in the environment of a run records them. Prefect keeps assets as events, by its own task:

    prefect.asset.materialization.succeeded    the target: which plan made it, from what, how closely it was verified
    prefect.asset.referenced                   the source

An asset's key is a URL, so that a target is the same asset when it becomes a source.
"""

import os
import re
from typing import Any

import xxhash
from prefect.assets import Asset, AssetProperties, add_asset_metadata, materialize
from prefect.logging import get_run_logger
from prefect.types.names import MAX_ASSET_KEY_LENGTH
from pydantic import TypeAdapter, ValidationError

from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import InputError
from reshard.core.text.printing import printable
from reshard.core.text.secrets import scrubbed
from reshard.tasks.policies import UNCACHED

VARIABLE = "RESHARD_RECORD_ASSETS"
_METADATA = {
    "identity",
    "step",
    "source_world_size",
    "target_world_size",
    "written_bytes",
    "verified",
    "fingerprint",
}
_OF_CUSTODY = {"signed_by", "signature_sha256", "provenance_sha256"}
_REFUSED = frozenset("#?&%\"'<>[]{}|\\^` ")
"""Printable characters that Prefect refuses in keys."""
_ESCAPE = "~"
_SCHEME = re.compile(r"[a-z0-9]+://")


def records_assets() -> bool:
    """True if the environment asks for assets.

    Raises:
        InputError: the variable is neither on nor off.
    """
    text = os.environ.get(VARIABLE, "").strip()
    try:
        return bool(text) and TypeAdapter(bool).validate_python(text)
    except ValidationError:
        raise InputError(f"{VARIABLE}={printable(text)}: is neither on nor off: set it to 1 or 0") from None


def record_assets(report: ConversionReport) -> None:
    """Record the target of a conversion as an asset made from its source, if the target is complete.

    A failure is a warning in the run's log: the conversion is done.
    """
    if not report.committed:
        return
    try:
        source, target = _asset(report.source), _asset(report.target)
        # keys are known only now, so the task is made here
        record = materialize(
            target,
            by="reshard",
            name="record-assets",
            task_run_name="record-assets",
            asset_deps=[source],
            **UNCACHED,
        )(add_asset_metadata)
        record(target.key, _metadata(report))
    except Exception as error:
        get_run_logger().warning("assets could not be recorded: %s", error)


def asset_key(url: str) -> str:
    """Return the key of the asset at a URL or an absolute path, without credentials.

    Characters that Prefect refuses become `~XX` for each byte of their UTF-8. A key that would be too long ends in the
    digest of all of it, after `~-`. A URL whose scheme Prefect refuses, such as a chain, follows `url://`.
    """
    text = scrubbed(url)
    if text.startswith("/"):
        text = f"file://{text}"
    elif not _SCHEME.match(text):
        text = f"url://{text}"
    key = "".join(map(_escaped, text))
    if len(key) <= MAX_ASSET_KEY_LENGTH:
        return key
    end = f"{_ESCAPE}-{xxhash.xxh3_128_hexdigest(key)}"
    return key[: MAX_ASSET_KEY_LENGTH - len(end)] + end


def _escaped(character: str) -> str:
    if character.isprintable() and character not in _REFUSED and character != _ESCAPE:
        return character
    return "".join(f"{_ESCAPE}{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _asset(url: str) -> Asset:
    return Asset(key=asset_key(url), properties=AssetProperties(name=printable(scrubbed(url))))


def _metadata(report: ConversionReport) -> dict[str, Any]:
    metadata = report.model_dump(mode="json", include=_METADATA, exclude_none=True)
    custody = report.custody.model_dump(mode="json", include=_OF_CUSTODY, exclude_none=True) if report.custody else {}
    return metadata | custody | {"source": printable(scrubbed(report.source))}
