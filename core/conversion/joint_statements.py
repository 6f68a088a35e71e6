"""The statements about joined parts, which continue those of all parts."""

from collections.abc import Iterable, Iterator, Sequence

from reshard.core.checkpoint.manifest import EQUIVALENCE_NAME, PROVENANCE_NAME, Manifest
from reshard.core.conversion.part_custody import PartCustody
from reshard.core.conversion.statements import document_dependency, statement_document, versions_here
from reshard.core.custody.chain import Chain, merged_steps
from reshard.core.custody.chain_reading import fitting
from reshard.core.custody.equivalence import COPIED, Comparison, build_equivalence
from reshard.core.custody.provenance import JOIN_TYPE, Invocation, build_provenance
from reshard.core.custody.statements import Dependency, Digests, FileFacts, relative_name, uri_of
from reshard.core.layouts.documents import Document
from reshard.core.request.joining import JoinRequest
from reshard.core.storage.read_log import ReadDocument
from reshard.core.storage.urls import Location, parse_url

_ROLE = "parts"


def joint_chain(final: Location, custodies: Iterable[PartCustody]) -> Chain:
    """Return the steps before a join of parts into a place: those of all parts."""
    chains = [custody.chain for custody in custodies if custody.chain]
    steps = merged_steps(chains)
    kept = fitting(steps)
    return Chain(final, kept, len(steps) - len(kept) + sum(chain.dropped for chain in chains))


def joint_statements(
    request: JoinRequest,
    manifest: Manifest,
    custodies: Sequence[PartCustody],
    chain: Chain,
    documents: Iterable[ReadDocument],
) -> tuple[Document, ...]:
    """Return the statements about joined parts, and the copies of those before, of `chain`.

    The manifest has the parts' files of tensors; `documents` are what else was read of the parts.
    """
    dependencies = tuple(_dependencies(manifest, custodies, documents))
    parameters = request.model_dump(mode="json") | {"parts": [str(parse_url(part)) for part in request.parts]}
    invocation = Invocation(parameters, dependencies, versions_here(manifest), build_type=JOIN_TYPE)
    return (
        statement_document(PROVENANCE_NAME, build_provenance(manifest, invocation)),
        statement_document(EQUIVALENCE_NAME, build_equivalence(manifest, Comparison(method=COPIED))),
        *chain.documents(withheld=False),
    )


def _dependencies(
    manifest: Manifest, custodies: Sequence[PartCustody], documents: Iterable[ReadDocument]
) -> Iterator[Dependency]:
    places = {str(custody.location): _ROLE for custody in custodies}
    for each in manifest.source_files:
        yield Dependency(
            name=relative_name(each.url, tuple(places)),
            uri=uri_of(each.url),
            digest=Digests(sha256=each.sha256),
            annotations=FileFacts(role=_ROLE, size_bytes=each.size_bytes, version=each.version, read="whole"),
        )
    for custody in custodies:
        yield from custody.chain.dependencies() if custody.chain else ()
    for document in documents:
        yield document_dependency(document, places)
