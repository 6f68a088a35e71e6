"""What the statements about a target say, for a reader."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from pydantic import JsonValue

from reshard.core.checkpoint.manifest import EQUIVALENCE_NAME, PROVENANCE_NAME
from reshard.core.custody.equivalence import COPIED, Declared, Equivalence, EquivalenceStatement
from reshard.core.custody.provenance import JOIN_TYPE, Provenance, ProvenanceStatement
from reshard.core.custody.reading import FoundStatement, as_document, check_any, identify, read_statements
from reshard.core.errors import InputError
from reshard.core.options.validation import RequestModel
from reshard.core.reports.blocks import GAP, Block, Facts, Table
from reshard.core.reports.report import Report
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.joining import JoinRequest
from reshard.core.runtime.records import Record
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, listed, size_text
from reshard.core.signing.verifier import Verifier
from reshard.core.storage.urls import Location, parse_url
from reshard.core.target.finished import Finished, find_finished
from reshard.core.text.printing import printable

_MAX_SHOWN = 6
_MAX_KEY_ID = 100
_MAX_FILES = 24
"""More are shown on a terminal only in part."""
_PLACES = ("source", "parts", "target", "source_strategy", "target_strategy")


class StatementSignature(Summary):
    """The signature of a statement.

    Attributes:
        statement: the statement's file name.
        key_id: SHA-256 of the public key that it names; empty if it names none; None: it is not signed.
        signer: who signed, if the signature was checked; None if it was not.
    """

    statement: str
    key_id: str | None
    signer: str | None = None


class Attestation(Report):
    """The statements about a target.

    Attributes:
        target: URL of the target.
        provenance: the statement on where it comes from, as an in-toto statement; None if there is none.
        equivalence: the statement on its values; None if there is none.
        signatures: of each statement.
        notes: which target was chosen, in sentences.
    """

    target: str
    provenance: dict[str, Any] | None
    equivalence: dict[str, Any] | None
    signatures: tuple[StatementSignature, ...]
    notes: tuple[str, ...] = ()

    def blocks(self) -> Iterator[Block]:
        """Yield its content: what was made of what, by what, whether values are the same, and who signed."""
        rows = [("target", self.target), *(("note", note) for note in self.notes)]
        dependencies: list[tuple[str, ...]] = []
        if self.provenance is not None:
            made = ProvenanceStatement.model_validate(self.provenance)
            rows += _provenance_rows(made)
            dependencies = _dependency_rows(made.predicate)
        if self.equivalence is not None:
            rows += _equivalence_rows(EquivalenceStatement.model_validate(self.equivalence).predicate)
        rows += [(f"{_title(each.statement)} signed", _signature_text(each)) for each in self.signatures]
        yield Facts(rows)
        if dependencies:
            yield GAP
            yield _dependency_table(dependencies)


class _Stated(Record):
    """A finished conversion, and the statements about it by file name."""

    finished: Finished
    statements: Mapping[str, FoundStatement]

    @property
    def directory(self) -> Location:
        return self.finished.location


def attest(url: str, verifier: Verifier | None = None) -> Attestation:
    """Read the statements about a finished conversion; with a `verifier`, check who signed them.

    Raises:
        InputError: there is no finished conversion, or no statement about it.
        TargetError: a statement, or the manifest, was changed or is malformed.
        SignatureError: a statement is not signed by anybody who is trusted.
        StorageError: one cannot be read.
    """
    found = _read(url)
    documents = {name: as_document(each) for name, each in found.statements.items()}
    signatures = [
        StatementSignature(
            statement=name,
            key_id=each.envelope.key_id if each.envelope else None,
            signer=identify(found.directory, each, verifier).text if verifier else None,
        )
        for name, each in found.statements.items()
    ]
    return Attestation(
        target=str(found.directory),
        provenance=documents.get(PROVENANCE_NAME),
        equivalence=documents.get(EQUIVALENCE_NAME),
        signatures=tuple(signatures),
        notes=found.finished.notes,
    )


def _read(url: str) -> _Stated:
    finished = find_finished(parse_url(url), "showing", "show")
    check_any(finished.manifest, finished.location)
    return _Stated(finished, read_statements(finished.location, finished.manifest))


def statement_text(url: str, statement: str, verifier: Verifier | None = None) -> str:
    """Return one of the statements, `provenance` or `equivalence`, exactly as it is there; raises as `attest`."""
    found, name = _read(url), f"{statement}.intoto.json"
    if name not in found.statements:
        raise InputError(f"{found.directory}: has no statement on {statement}")
    chosen = found.statements[name]
    if verifier:
        identify(found.directory, chosen, verifier)
    return chosen.data.decode()


def _provenance_rows(statement: ProvenanceStatement) -> Iterator[tuple[str, str]]:
    definition, run = statement.predicate.build_definition, statement.predicate.run_details
    yield "files", f"{counted(len(statement.subject), 'file')}, each with its SHA-256"
    programs = sorted(run.builder.version.items(), key=_reshard_first)
    yield "made by", ", ".join(f"{name} {version}" for name, version in programs)
    yield "run", run.metadata.invocation_id
    yield "from, to", f"{run.metadata.started_on} - {run.metadata.finished_on}, by its machine's clock"
    for name in _PLACES:
        if value := definition.external_parameters.get(name):
            yield name.replace("_", " "), _value_text(value)
    request = JoinRequest if definition.build_type == JOIN_TYPE else ConversionRequest
    if options := _options_text(definition.external_parameters, request):
        yield "options", options
    if definition.internal_parameters.withheld:
        yield "withheld", definition.internal_parameters.withheld_reason


def _reshard_first(program: tuple[str, str]) -> tuple[bool, str]:
    name, _ = program
    return name != "reshard", name


def _options_text(parameters: dict[str, JsonValue], request: type[RequestModel]) -> str:
    """The options that are not this version's defaults."""
    fields = request.model_fields
    changed = {
        name: value
        for name, value in parameters.items()
        if name not in _PLACES and (name not in fields or value != fields[name].get_default(call_default_factory=True))
    }
    return ", ".join(f"{name}: {_value_text(value)}" for name, value in sorted(changed.items()))


def _value_text(value: JsonValue) -> str:
    return listed([str(each) for each in value], _MAX_SHOWN) if isinstance(value, list) else str(value)


def _dependency_rows(predicate: Provenance) -> list[tuple[str, ...]]:
    return [
        (
            each.name,
            each.annotations.role,
            "" if each.annotations.size_bytes is None else size_text(each.annotations.size_bytes),
            each.annotations.read,
            each.digest.sha256 if each.digest else "not taken",
        )
        for each in predicate.build_definition.resolved_dependencies
    ]


def _dependency_table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(
        ("made from", "named by", "size", "read", "SHA-256"),
        rows,
        right=("size",),
        optional=("named by", "read"),
        keys=("made from",),
    )
    if len(rows) <= _MAX_FILES:
        return table
    first = replace(table, rows=rows[: _MAX_FILES // 2], more=len(rows) - _MAX_FILES // 2, more_what=" files")
    return replace(table, short=first)


def _equivalence_rows(found: Equivalence) -> Iterator[tuple[str, str]]:
    source, target = found.source, found.target
    yield "ranks", f"{source.ranks} -> {target.ranks}"
    yield "values", _values_text(found)
    if target.fingerprint:
        yield "fingerprint", target.fingerprint
    if found.declared is not None:
        yield from _declared_rows(found, found.declared)


def _values_text(found: Equivalence) -> str:
    if found.method == COPIED:
        return found.method
    if not found.values_compared:
        return f"not compared with the source's; files checked: {found.level}"
    count = "" if found.parameters_compared is None else f" of {counted(found.parameters_compared, 'parameter')}"
    replicas = ", all replicas of the source compared" if found.replicas_compared else ""
    changes = " after the declared changes" if _is_changed(found) else ""
    return f"all values{count} compared, and equal to the source's{changes}{replicas}"


def _is_changed(found: Equivalence) -> bool:
    declared = found.declared
    return bool(found.preset or found.adapter or declared is None or declared.changes or declared.appended)


def _declared_rows(found: Equivalence, declared: Declared) -> Iterator[tuple[str, str]]:
    if found.preset:
        yield "preset", found.preset
    if found.adapter:
        yield "merged adapter", found.adapter
    if declared.changes:
        yield "changes", ", ".join(sorted(declared.changes))
    if declared.appended:
        yield "appended", listed(list(declared.appended), _MAX_SHOWN)
    left_out = declared.left_out
    for title, names in (
        ("excluded", left_out.excluded),
        ("dropped", left_out.dropped),
        ("missing, as allowed", left_out.excused),
        ("passed through", left_out.passed_through),
    ):
        if names:
            yield title, listed(list(names), _MAX_SHOWN)
    for name, count in sorted(declared.overflows.items())[:_MAX_SHOWN]:
        yield "overflowed", f"{name}: {counted(count, 'value')}"


def _title(name: str) -> str:
    return name.partition(".")[0]


def _signature_text(signature: StatementSignature) -> str:
    if signature.key_id is None:
        return "no"
    if signature.signer is not None:
        return f"by {signature.signer}"
    key_id = printable(signature.key_id)[:_MAX_KEY_ID]
    named = f"the key with SHA-256 {key_id}" if key_id else "a key that it does not name"
    return f"with {named}; not checked"
