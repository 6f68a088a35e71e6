"""Reads the chain of statements beside a target (`reshard.core.custody.chain`), and compares them with each other."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from msgspec.structs import replace

from reshard.core.checkpoint.manifest import (
    EQUIVALENCE_NAME,
    MAX_PREDECESSORS,
    MAX_STATEMENT_BYTES,
    PREDECESSORS_DIRECTORY,
    PROVENANCE_NAME,
    STATEMENT_NAMES,
    Manifest,
)
from reshard.core.custody.agreement import disagreements
from reshard.core.custody.chain import REMEDY, Chain, Step, links_to
from reshard.core.custody.equivalence import EquivalenceStatement
from reshard.core.custody.provenance import ProvenanceStatement
from reshard.core.custody.reading import is_envelope
from reshard.core.custody.statements import parse_statement
from reshard.core.errors import SignatureError, StorageError, TargetError, is_transient
from reshard.core.layouts.manifests import read_manifest
from reshard.core.signing.bundle import Bundle, parse_bundle
from reshard.core.signing.documents import MAX_DOCUMENT_BYTES
from reshard.core.signing.dsse import Envelope, parse_envelope
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.publishing import SIGNATURE_NAME, STATE_DIRECTORY, state_path
from reshard.core.storage.reading import read_own_file
from reshard.core.storage.urls import Location
from reshard.core.target.documents import statement_problem
from reshard.core.text.printing import listed_lines

Kind = TypeVar("Kind", ProvenanceStatement, EquivalenceStatement)
MAX_CHAIN_BYTES = 2**27
"""Statements of predecessors that a target keeps; the nearest are kept whatever their size."""


def read_chain(directory: Location) -> Chain | None:
    """Read the chain that a conversion of the target in a directory continues; None if that has no provenance.

    Raises:
        TargetError: a statement is damaged, or contradicts another one or the manifest.
        StorageError: one cannot be read.
    """
    manifest = read_manifest(directory)
    if manifest is None or not any(each.file == state_path(PROVENANCE_NAME) for each in manifest.statements):
        return None
    steps = examine_chain(directory, manifest)
    problems = [problem for step in steps for problem in step.problems]
    if problems:
        what = "\n  ".join(listed_lines(problems))
        raise TargetError(f"{directory}: the statements about it are damaged:\n  {what}\n{REMEDY}")
    kept = fitting(steps)
    return Chain(directory, kept, len(steps) - len(kept))


def fitting(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return those of some steps, the nearest first, that a target keeps; at least one, if there is one."""
    totals = accumulate(sum(map(len, step.files.values())) for step in steps)
    count = sum(total <= MAX_CHAIN_BYTES for total in totals)
    return tuple(steps[: max(1, min(count, MAX_PREDECESSORS))])


def examine_chain(directory: Location, manifest: Manifest) -> tuple[Step, ...]:
    """Read the statements about a target, and those of its predecessors, and compare them with each other.

    Problems are left to the caller, as the steps have them.

    Raises:
        StorageError: a transient failure.
    """
    listed = {each.file: each for each in manifest.statements}
    damaged = {file: problem for file, each in listed.items() if (problem := statement_problem(directory, each))}
    steps: list[Step] = []
    for number in range(MAX_PREDECESSORS + 1):
        place = directory.child(STATE_DIRECTORY)
        if number:
            place = place.child(PREDECESSORS_DIRECTORY, str(number))
        beginning = f"{place.path.removeprefix(f'{directory.path}/')}/"
        names = [name for name in (*STATEMENT_NAMES, SIGNATURE_NAME) if f"{beginning}{name}" in listed]
        if not names:
            break
        problems = [damaged[f"{beginning}{name}"] for name in names if f"{beginning}{name}" in damaged]
        signature = place.child(SIGNATURE_NAME) if number else directory.child(SIGNATURE_NAME)
        steps.append(_read_step(number, place, names, signature, problems))
    return tuple(replace(step, problems=(*step.problems, *_contradictions(step, steps, manifest))) for step in steps)


def _read_step(
    number: int,
    place: Location,
    names: Sequence[str],
    signature: Location,
    problems: list[str],
) -> Step:
    files: dict[str, bytes] = {}
    for name in names:
        if (data := _read(place.child(name), problems)) is not None:
            files[name] = data
    if not number and (data := _read(signature, [])) is not None and len(data) <= MAX_STATEMENT_BYTES:
        files[SIGNATURE_NAME] = data
    opened = {name: _opened(files[name], str(place.child(name)), problems) for name in STATEMENT_NAMES if name in files}
    payloads = {name: each[0] for name, each in opened.items() if each is not None}
    return Step(
        number,
        place,
        files,
        _parsed(payloads, PROVENANCE_NAME, ProvenanceStatement, place, problems),
        _parsed(payloads, EQUIVALENCE_NAME, EquivalenceStatement, place, problems),
        tuple(each[1] for each in opened.values() if each is not None and each[1] is not None),
        _bundle(files.get(SIGNATURE_NAME), str(signature)),
        tuple(problems),
    )


def _read(location: Location, problems: list[str]) -> bytes | None:
    """Return a file's bytes; None if it is missing. Damage is added to the problems."""
    try:
        return unless_missing(lambda: read_own_file(location, MAX_DOCUMENT_BYTES))
    except (TargetError, StorageError) as error:
        if is_transient(error):
            raise
        problems.append(str(error))
        return None


def _opened(data: bytes, origin: str, problems: list[str]) -> tuple[bytes, Envelope | None] | None:
    """Return a statement, and the envelope that it is in, if it is signed."""
    try:
        if is_envelope(data):
            envelope = parse_envelope(data, origin)
            return envelope.payload, envelope
    except SignatureError as error:
        problems.append(error.marked)
        return None
    return data, None


def _parsed(
    payloads: Mapping[str, bytes], name: str, kind: type[Kind], place: Location, problems: list[str]
) -> Kind | None:
    if name not in payloads:
        return None
    try:
        return parse_statement(payloads[name], kind, str(place.child(name)))
    except TargetError as error:
        problems.append(error.marked)
        return None


def _bundle(data: bytes | None, origin: str) -> Bundle | None:
    """Parse a signature; None for one of another kind, such as a keyless one, which says nothing here."""
    try:
        return None if data is None else parse_bundle(data, origin)
    except SignatureError:
        return None


def _contradictions(step: Step, steps: Sequence[Step], manifest: Manifest) -> Iterator[str]:
    """Yield what a step's statements contradict: the manifest, the signature, the steps after it."""
    if step.provenance is None:
        yield f"{step.directory}: has no readable {PROVENANCE_NAME}"
        return
    written = step.subjects
    statements = {PROVENANCE_NAME: step.provenance, EQUIVALENCE_NAME: step.equivalence}
    for name, statement in statements.items() if not step.number else ():
        if statement is not None:
            yield from disagreements(statement, manifest, str(step.directory.child(name)))
    if step.equivalence is not None and {each.name: each.digest.sha256 for each in step.equivalence.subject} != written:
        yield f"{step.directory.child(EQUIVALENCE_NAME)}: is about other files than {PROVENANCE_NAME}"
    signed = step.signature.files.digests if step.signature else {}
    for name in STATEMENT_NAMES:
        data, digest = step.files.get(name), signed.get(state_path(name))
        if data is not None and digest not in (None, hashlib.sha256(data).hexdigest()):
            yield f"{step.directory.child(name)}: is not the statement that {SIGNATURE_NAME} covers"
    links = links_to(step, steps)
    if step.number and not links:
        yield f"{step.directory.child(PROVENANCE_NAME)}: is not the one that its successor refers to"
    for link in links:
        for name, sha256 in link.successor.read_from(link.reference):
            if written.get(name, sha256) != sha256:
                yield (
                    f"{step.directory}: wrote {name} with SHA-256 {written[name]}, but its successor read one with "
                    f"{sha256}"
                )
