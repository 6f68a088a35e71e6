"""The chain of statements that a conversion continues: its source's, if that is a converted target with statements."""

from typing import TYPE_CHECKING

from reshard.core.custody.source_places import common_directory, directory_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.storage.listing import exists
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY
from reshard.core.storage.read_log import documents_planned_from
from reshard.core.storage.urls import Location, parse_url

if TYPE_CHECKING:  # statements, which conversions without SHA-256 do not need
    from reshard.core.custody.chain import Chain


def continued_chain(request: ConversionRequest, plan: ConversionPlan) -> "tuple[ConversionPlan, Chain | None]":
    """Return the chain that a plan's target continues, and the plan with a note on it; None if it begins one.

    Without SHA-256 there are no statements to continue.

    Raises:
        TargetError: the source's statements are damaged, or contradict each other.
        CatalogError: documents that were read are not those that its provenance lists.
        StorageError: they cannot be read.
    """
    directory = _converted_directory(request, plan) if request.hashes_target else None
    if directory is None:
        return plan, None
    from reshard.core.custody.chain_reading import read_chain

    chain = read_chain(directory)
    if chain is None:
        return plan, None
    chain.check_same((each.url, each.sha256) for each in documents_planned_from())
    return plan.with_notes(*chain.notes(withheld=bool(plan.inputs.encryption))), chain


def _converted_directory(request: ConversionRequest, plan: ConversionPlan) -> Location | None:
    """The nearest directory with a manifest, from the one that all files read are in up to the source's own."""
    root = directory_of(parse_url(request.source))
    place = common_directory([parse_url(record.location) for record in plan.inputs.catalog.records.values()])
    places = []
    while place.path.startswith(f"{root.path.rstrip('/')}/"):
        places.append(place)
        place = place.parent
    has_manifest = (each for each in (*places, root) if exists(each.child(STATE_DIRECTORY, MANIFEST_NAME)))
    return next(has_manifest, None)
