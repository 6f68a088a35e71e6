"""The check of the statements about a target: they are there, agree with everything else, and perhaps are signed."""

from collections.abc import Iterator

from reshard.core.checkpoint.manifest import PROVENANCE_NAME, STATEMENT_NAMES, Manifest
from reshard.core.custody.agreement import disagreements
from reshard.core.custody.chain_reading import examine_chain
from reshard.core.custody.dependencies import Findings, check_dependencies
from reshard.core.custody.provenance import ProvenanceStatement
from reshard.core.custody.reading import FoundStatement, identify, own_statements, read_statement, statement_location
from reshard.core.errors import SignatureError, StorageError, TargetError, is_transient
from reshard.core.runtime.progress import Progress, SilentProgress
from reshard.core.signing.verifier import Verifier
from reshard.core.storage.urls import Location


def check_provenance(
    directory: Location,
    manifest: Manifest,
    verifier: Verifier | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Check the statements about a finished target against its manifest, and against what it was made from.

    Of source files those are read whole whose SHA-256 was taken. That the target's files are as the manifest says is
    not checked here. The manifest is as it is stored, sealed if the target is encrypted.

    Raises:
        StorageError: a storage does not answer.
    """
    problems: list[str] = []
    found: dict[str, FoundStatement] = {}
    listed = own_statements(manifest)
    for name in STATEMENT_NAMES:
        location = statement_location(directory, name)
        if name not in listed:
            problems.append(f"{location}: is missing: the manifest lists no such statement")
            continue
        try:
            found[name] = read_statement(directory, listed[name])
        except (TargetError, SignatureError, StorageError) as error:
            if isinstance(error, StorageError) and is_transient(error):
                raise
            problems.append(str(error))
    for name, statement in found.items():
        problems += disagreements(statement.statement, manifest, str(statement_location(directory, name)))
        problems += _signature_problems(directory, statement, verifier)
    problems += [problem for step in examine_chain(directory, manifest)[1:] for problem in step.problems]
    dependencies = Findings()
    provenance = found[PROVENANCE_NAME].statement if PROVENANCE_NAME in found else None
    if isinstance(provenance, ProvenanceStatement):
        dependencies = check_dependencies(provenance, directory, manifest, progress or SilentProgress())
    return Findings((*problems, *dependencies.problems), dependencies.notes)


def _signature_problems(directory: Location, found: FoundStatement, verifier: Verifier | None) -> Iterator[str]:
    if verifier is None:
        return
    try:
        identify(directory, found, verifier)
    except (SignatureError, TargetError, StorageError) as error:
        if isinstance(error, StorageError) and is_transient(error):
            raise
        yield str(error)
