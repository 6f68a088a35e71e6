"""Whether the statements about a target agree with its manifest. Pure: both are documents that were read."""

from collections.abc import Iterator, Mapping

from reshard.core.checkpoint.manifest import Manifest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.custody.equivalence import EquivalenceStatement, changes_of, left_out_of
from reshard.core.custody.provenance import ProvenanceStatement
from reshard.core.custody.statements import Statement, timestamp, uri_of
from reshard.core.runtime.wording import shortened
from reshard.core.text.printing import printable

_MAX_VALUE, _MAX_NAME = 100, 1000


def disagreements(statement: Statement, manifest: Manifest, origin: str) -> Iterator[str]:
    """Yield what a statement says otherwise than a manifest, in sentences that begin with `origin`, its file.

    The manifest is an encrypted target's as it is stored, sealed: such statements name no parameter.
    """
    yield from _subject_disagreements(statement, manifest, origin)
    expected: Mapping[str, object] = {}
    found: Mapping[str, object] = {}
    if isinstance(statement, ProvenanceStatement):
        found, expected = _of_provenance(statement, manifest)
        yield from _source_disagreements(statement, manifest, origin)
    if isinstance(statement, EquivalenceStatement):
        found, expected = _of_equivalence(statement, manifest)
        yield from _level_disagreements(statement, manifest, origin)
    for field, value in expected.items():
        if found[field] != value:
            yield f"{origin}: {field} is {_text(found[field])}, the manifest says {_text(value)}"


def _subject_disagreements(statement: Statement, manifest: Manifest, origin: str) -> Iterator[str]:
    known = manifest.sha256
    named: set[str] = set()
    for subject in statement.subject:
        name, sha256 = subject.name, subject.digest.sha256
        if name in named:
            yield f"{origin}: names {_name(name)} twice"
        elif name not in known:
            yield f"{origin}: is about {_name(name)}, which the manifest does not list"
        elif sha256 != known[name]:
            yield f"{origin}: the SHA-256 of {_name(name)} is {sha256}, the manifest says {known[name]}"
        named.add(name)
    for name in known:
        if name not in named:
            yield f"{origin}: is not about {_name(name)}, which the manifest lists"


def _of_provenance(statement: ProvenanceStatement, manifest: Manifest) -> tuple[dict[str, object], dict[str, object]]:
    """Return fields as the statement has them, and as they are by the manifest."""
    definition, run = statement.predicate.build_definition, statement.predicate.run_details
    internal, invocation = definition.internal_parameters, run.metadata.invocation_id
    found: dict[str, object] = {
        "internalParameters.identity": internal.identity,
        "internalParameters.writer": internal.writer,
        "internalParameters.format": internal.format,
        "internalParameters.layout": internal.layout,
        "internalParameters.withheld": internal.withheld,
        "builder.version.reshard": run.builder.version.get("reshard"),
        "metadata.invocationId": invocation.partition("/")[0],
        "metadata.finishedOn": run.metadata.finished_on,
    }
    expected: dict[str, object] = {
        "internalParameters.identity": manifest.identity,
        "internalParameters.writer": manifest.writer,
        "internalParameters.format": manifest.format,
        "internalParameters.layout": manifest.layout,
        "internalParameters.withheld": bool(manifest.encryption),
        "builder.version.reshard": manifest.writer.removeprefix("reshard "),
        "metadata.invocationId": manifest.identity,
        "metadata.finishedOn": _time(manifest.created),
    }
    if manifest.run is not None:
        found["metadata.startedOn"] = run.metadata.started_on
        expected["metadata.startedOn"] = _time(manifest.run.begun)
    return found, expected


def _source_disagreements(statement: ProvenanceStatement, manifest: Manifest, origin: str) -> Iterator[str]:
    """Yield checkpoint files that were read whole of which the manifest says something else; it is sealed otherwise."""
    known = {uri_of(each.url): each.sha256 for each in manifest.source_files}
    dependencies = statement.predicate.build_definition.resolved_dependencies
    given = {
        each.uri: each.digest.sha256
        for each in dependencies
        if each.uri and each.digest and (each.annotations.version is not None or each.uri in known)
    }
    for uri, sha256 in given.items():
        if known.get(uri) != sha256:
            yield f"{origin}: the SHA-256 of {_name(uri)} is {sha256}, the manifest says {_text(known.get(uri))}"
    for uri in known:
        if uri not in given:
            yield f"{origin}: has no SHA-256 of {_name(uri)}, which the manifest has"


def _of_equivalence(statement: EquivalenceStatement, manifest: Manifest) -> tuple[dict[str, object], dict[str, object]]:
    """Return fields as the statement has them, and as they are by the manifest."""
    predicate, is_withheld = statement.predicate, bool(manifest.encryption)
    source, target, declared = predicate.source, predicate.target, predicate.declared
    found: dict[str, object] = {
        "identity": predicate.identity,
        "source.uri": source.uri,
        "source.step": source.step,
        "source.ranks": source.ranks,
        "target.ranks": target.ranks,
        "target.layout": target.layout,
        "target.format": target.format,
        "withheld": predicate.withheld,
        "declared": "withheld" if declared is None else "given",
    }
    expected: dict[str, object] = {
        "identity": manifest.identity,
        "source.uri": uri_of(manifest.source),
        "source.step": manifest.step,
        "source.ranks": manifest.source_world_size,
        "target.ranks": manifest.target_world_size,
        "target.layout": manifest.layout,
        "target.format": manifest.format,
        "withheld": is_withheld,
        "declared": "withheld" if is_withheld else "given",
    }
    if declared is not None and not is_withheld:
        left_out = left_out_of(manifest)
        found |= {f"declared.leftOut.{name}": value for name, value in declared.left_out.model_dump().items()}
        expected |= {f"declared.leftOut.{name}": value for name, value in left_out.model_dump().items()}
        found |= {"declared.changes": declared.changes, "declared.notes": declared.notes}
        expected |= {"declared.changes": changes_of(manifest), "declared.notes": manifest.notes}
    return found, expected


def _level_disagreements(statement: EquivalenceStatement, manifest: Manifest, origin: str) -> Iterator[str]:
    """Yield what a statement claims beyond the manifest, whose level a later check of the target may have raised."""
    predicate = statement.predicate
    if manifest.verified.is_below(predicate.level):
        yield f"{origin}: level is {predicate.level}, the manifest says {manifest.verified}"
    if predicate.values_compared != (predicate.level is VerifyLevel.CONTENT):
        yield f"{origin}: valuesCompared is {predicate.values_compared}, with level {predicate.level}"
    fingerprints = {
        "source.fingerprint": predicate.source.fingerprint,
        "target.fingerprint": predicate.target.fingerprint,
    }
    is_given = predicate.values_compared and not predicate.withheld
    for field, fingerprint in fingerprints.items():
        if fingerprint is not None and (not is_given or fingerprint != manifest.fingerprint):
            known = _text(manifest.fingerprint) if is_given else "none, as values were not compared or are withheld"
            yield f"{origin}: {field} is {_text(fingerprint)}, the manifest says {known}"
    if is_given and predicate.target.fingerprint is None:
        yield f"{origin}: target.fingerprint is missing, although valuesCompared is True"


def _time(time: str) -> str:
    try:
        return timestamp(time)
    except ValueError:  # the manifest was changed
        return time


def _name(name: str) -> str:
    return shortened(printable(name), _MAX_NAME)


def _text(value: object) -> str:
    if value is None:
        return "nothing"
    return shortened(printable(value if isinstance(value, str) else repr(value)), _MAX_VALUE)
