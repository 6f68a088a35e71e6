"""The statements about a conversion's target, from what its session knows."""

import hashlib
import platform
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from reshard.core.changes.option_types import is_own_preset
from reshard.core.changes.preset import preset_text
from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.checkpoint.manifest import EQUIVALENCE_NAME, PROVENANCE_NAME, STATEMENT_NAMES, Manifest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.session import Session
from reshard.core.custody.continued import current_chain
from reshard.core.custody.equivalence import Comparison, build_equivalence
from reshard.core.custody.provenance import Invocation, build_provenance
from reshard.core.custody.statements import (
    PARTLY,
    Dependency,
    Digests,
    FileFacts,
    Statement,
    dump_statement,
    relative_name,
    uri_of,
)
from reshard.core.layouts.documents import Document
from reshard.core.options.fields import URL_METAVAR, metavar_of
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.invocation import current_flow_run
from reshard.core.runtime.named_values import is_name
from reshard.core.signing.current import current_signer
from reshard.core.storage.joined import parts_of
from reshard.core.storage.publishing import state_path
from reshard.core.storage.read_log import ReadDocument, documents_planned_from
from reshard.core.storage.urls import Location, parse_url

if TYPE_CHECKING:
    from reshard.core.verification.values import ContentCheck

BESIDE = "beside"
"""Role of a document that was found outside of the places that the request names."""


def make_statements(
    session: Session,
    manifest: Manifest,
    compared: "ContentCheck | None",
    overflows: Mapping[str, int],
    *,
    names: Collection[str] = STATEMENT_NAMES,
    is_later: bool = False,
) -> tuple[Document, ...]:
    """Return the statements about a target; its `manifest` is not sealed.

    `is_later`: another run than this one made the target, by the same plan.
    """
    statements: dict[str, Statement] = {}
    if PROVENANCE_NAME in names:
        invocation = _invocation(session, manifest, is_later=is_later)
        statements[PROVENANCE_NAME] = build_provenance(manifest, invocation)
    if EQUIVALENCE_NAME in names:
        comparison = _comparison(session, manifest, compared, overflows)
        statements[EQUIVALENCE_NAME] = build_equivalence(manifest, comparison)
    chain = current_chain() if PROVENANCE_NAME in names else None
    predecessors = chain.documents(withheld=bool(session.plan.inputs.encryption)) if chain else ()
    return (*(statement_document(name, statement) for name, statement in statements.items()), *predecessors)


def statement_document(name: str, statement: Statement) -> Document:
    """Return the file of a statement about a target, signed if there is a signer."""
    file, data, signer = state_path(name), dump_statement(statement), current_signer()
    if signer is None:
        return Document(file, data)
    from reshard.core.custody.reading import signed_document  # with cryptography

    return signed_document(file, data, signer)


def _invocation(session: Session, manifest: Manifest, *, is_later: bool) -> Invocation:
    versions = versions_here(manifest)
    return Invocation(
        parameters=session.request.model_dump(mode="json"),
        dependencies=tuple(_dependencies(session, manifest)),
        versions={"reshard": versions["reshard"]} if is_later else versions,
        flow_run="" if is_later else current_flow_run(),
    )


def versions_here(manifest: Manifest) -> dict[str, str]:
    """Return the versions of what made a target, in this process."""
    writer = manifest.writer.removeprefix("reshard ")
    return {"reshard": writer, "python": platform.python_version(), "numpy": np.__version__}


def _comparison(
    session: Session, manifest: Manifest, compared: "ContentCheck | None", overflows: Mapping[str, int]
) -> Comparison:
    request, inputs = session.request, session.plan.inputs
    unknown = None if manifest.verified is VerifyLevel.CONTENT else 0
    return Comparison(
        parameters=compared.parameter_count if compared else unknown,
        source_bytes=compared.source_bytes() if compared else unknown,
        source_fingerprint=compared.source_fingerprint() if compared and not inputs.encryption else None,
        replicas=request.check_replicas,
        preset=request.preset,
        adapter=request.lora,
        appended=dict(inputs.append_info),
        overflows=overflows,
    )


def _dependencies(session: Session, manifest: Manifest) -> Iterator[Dependency]:
    """What was read: the source's files and statements, the adapter's, documents, and the package's preset."""
    request, inputs = session.request, session.plan.inputs
    withheld = bool(inputs.encryption)
    places = {"source": request.source} | ({"lora": request.lora} if inputs.adapter else {})
    seen: set[str] = set()
    if withheld:  # names of files may be names of parameters
        yield from (_place_dependency(role, place) for role, place in places.items())
    else:
        records = {"source": inputs.catalog.records, "lora": inputs.adapter.catalog.records if inputs.adapter else {}}
        sha256 = {each.url: each.sha256 for each in manifest.source_files}
        for role, place in places.items():
            for url, dependency in _checkpoint_files(role, place, records[role].values(), sha256):
                if url not in seen:
                    seen.add(url)
                    yield dependency
    if chain := current_chain():
        chain.check_same((each.url, each.sha256) for each in manifest.source_files)
        yield from chain.dependencies()
    named = _places_of(request)
    for document in documents_planned_from():
        if document.url in seen or _is_of_target(document.url, session.target.final):
            continue
        found = document_dependency(document, named)
        if not (withheld and found.annotations.role in places):
            yield found
    if request.preset and not is_own_preset(request.preset):
        data = preset_text(request.preset).encode()
        yield Dependency(
            name=f"{request.preset}.yaml",
            digest=Digests(sha256=hashlib.sha256(data).hexdigest()),
            annotations=FileFacts(role="preset", size_bytes=len(data), read="whole"),
        )


def _place_dependency(role: str, place: str) -> Dependency:
    return Dependency(name=role, uri=uri_of(str(parse_url(place))), annotations=FileFacts(role=role, read=PARTLY))


def _checkpoint_files(
    role: str, place: str, records: Iterable[CatalogRecord], sha256: Mapping[str, str]
) -> Iterator[tuple[str, Dependency]]:
    bases = (str(parse_url(place)),) if "{" not in place else ()
    for record in records:
        for url, version in _files_of(record):
            digest = sha256.get(url)
            facts = FileFacts(
                role=role,
                size_bytes=record.size_bytes if url == record.location else None,
                version=version,
                read="whole" if digest else PARTLY,
            )
            name = relative_name(url, bases)
            yield (
                url,
                Dependency(
                    name=name, uri=uri_of(url), digest=Digests(sha256=digest) if digest else None, annotations=facts
                ),
            )


def _files_of(record: CatalogRecord) -> list[tuple[str, str | None]]:
    """The files of a record with their versions: several, if they are read as one."""
    parts = list(map(str, parts_of(parse_url(record.location))))
    if not parts:
        return [(record.location, record.version)]
    versions = record.version.split("+")
    # an etag may have the sign itself
    return list(zip(parts, versions, strict=True)) if len(versions) == len(parts) else [(part, None) for part in parts]


def _places_of(request: ConversionRequest) -> dict[str, str]:
    """The places that a request names, but the target: URL -> option."""
    options = (name for name, field in type(request).model_fields.items() if metavar_of(field) == URL_METAVAR.text)
    named = {name: getattr(request, name) for name in (*options, "source", "preset") if name != "target"}
    return {
        str(parse_url(url)): name
        for name, url in named.items()
        if url and "{" not in url and not is_name(url) and (name != "preset" or is_own_preset(url))
    }


def document_dependency(document: ReadDocument, places: Mapping[str, str]) -> Dependency:
    """Return what a provenance says of a document that was read; `places`: URL -> the option that names it."""
    inside = [place for place in places if document.url == place or document.url.startswith(f"{place}/")]
    place = max(inside, key=len, default="")
    return Dependency(
        name=relative_name(document.url, (place,)),
        uri=uri_of(document.url),
        digest=Digests(sha256=document.sha256),
        annotations=FileFacts(role=places.get(place, BESIDE), size_bytes=document.size_bytes, read="whole"),
    )


def _is_of_target(url: str, final: Location) -> bool:
    """True for a state file of an earlier target, or of unfinished work, which was only looked at."""
    return url.startswith((f"{final}/", f"{final}.reshard-"))
