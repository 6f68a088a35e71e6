"""The value equivalence of a target and its source: how closely they were compared, and what differs by declaration.

The predicate is ours: docs/reference/statements.md describes its fields. Pure.
"""

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import JsonValue

from reshard.core.changes.changes import NO_CHANGES
from reshard.core.checkpoint.manifest import FailFastTuple, Manifest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.custody.statements import WITHHELD, Part, Statement, subjects_of, uri_of
from reshard.core.runtime.records import Record

EQUIVALENCE_TYPE: Final = "urn:reshard:value-equivalence:v1"
FINGERPRINT_METHOD = (
    "sums of all elements, weighted by their position in the whole tensor, modulo 2^64; not a cryptographic hash"
)
NOT_COMPARED = "not compared"
COPIED = "files copied from parts, and every byte read back and compared with the digests in the parts' records"


class EquivalentSource(Part):
    """The source: its place, step and ranks; and its fingerprint after the declared changes, from its own files."""

    uri: str
    step: str | None
    ranks: int
    fingerprint: str | None


class EquivalentTarget(Part):
    """The target: its ranks, layout and format; and its fingerprint, from the files that were written."""

    ranks: int
    layout: str
    format: str
    fingerprint: str | None


class LeftOut(Part):
    """Parameters that are not, or not resharded, in the target; names.

    Attributes:
        excluded: of the source; the selection left them out.
        dropped: of the source's strategy; the target's does not have them.
        excused: of the target's strategy; they were allowed to be missing.
        passed_through: in no strategy; copied unchanged to every rank.
    """

    excluded: FailFastTuple[str] = ()
    dropped: FailFastTuple[str] = ()
    excused: FailFastTuple[str] = ()
    passed_through: FailFastTuple[str] = ()


class Declared(Part):
    """What a conversion says of parameters, by their names.

    Attributes:
        left_out: parameters that are not in the target, or not resharded.
        changes: changes of parameters, as declared or made of a preset; empty if there are none.
        appended: names and values that were written into every target file.
        overflows: parameter -> number of its finite values that became infinite when cast.
        notes: decisions of the conversion, in sentences.
    """

    left_out: LeftOut
    changes: dict[str, JsonValue]
    appended: dict[str, JsonValue]
    overflows: dict[str, int]
    notes: FailFastTuple[str]


class Equivalence(Part):
    """The predicate.

    Attributes:
        identity: the plan's identity.
        level: how closely all files were checked.
        values_compared: True if all values of source and target were compared, and are equal after the changes.
        method: how they were compared; `not compared` if they were not, and of joined parts, how these were copied.
        parameters_compared: number of parameters whose values were compared; None if another run did, and the statement
            was added later.
        bytes_compared: bytes that were read from the source for it; None as above.
        source: the source.
        target: the target.
        replicas_compared: True if all replicas of each slice in the source were compared with each other.
        preset: the preset's name or URL; empty if there is none.
        adapter: URL of the LoRA adapter that was merged; empty if there is none.
        declared: changes, and what is left out; None if withheld.
        withheld: True if the target is encrypted.
        withheld_reason: why, in a sentence; empty if nothing was.
    """

    identity: str
    level: VerifyLevel
    values_compared: bool
    method: str
    parameters_compared: int | None
    bytes_compared: int | None
    source: EquivalentSource
    target: EquivalentTarget
    replicas_compared: bool
    preset: str
    adapter: str
    declared: Declared | None
    withheld: bool
    withheld_reason: str


class EquivalenceStatement(Statement):
    """The statement."""

    predicate_type: Literal["urn:reshard:value-equivalence:v1"] = EQUIVALENCE_TYPE
    predicate: Equivalence


class Comparison(Record):
    """What a conversion knows of its values besides its target's manifest.

    Attributes:
        parameters: number of parameters compared; 0: none; None: unknown.
        source_bytes: bytes read from the source to compare them; None: unknown.
        source_fingerprint: the source's after the declared changes, by its own files; None if values were not compared.
        replicas: the source's replicas were compared.
        preset: name or URL of the preset; empty without one.
        adapter: URL of the adapter; empty without one.
        appended: entries of every target file, in place of the source's.
        overflows: parameter -> number of values that became infinite.
        method: what was done if values were not compared.
    """

    parameters: int | None = 0
    source_bytes: int | None = 0
    source_fingerprint: str | None = None
    replicas: bool = False
    preset: str = ""
    adapter: str = ""
    appended: Mapping[str, JsonValue] = {}
    overflows: Mapping[str, int] = {}
    method: str = NOT_COMPARED


def build_equivalence(manifest: Manifest, comparison: Comparison) -> EquivalenceStatement:
    """Build the statement of a target; its `manifest` is not sealed yet, and has all digests.

    Raises:
        ValueError: it lacks them.
    """
    is_withheld, is_compared = bool(manifest.encryption), manifest.verified is VerifyLevel.CONTENT
    predicate = Equivalence(
        identity=manifest.identity,
        level=manifest.verified,
        values_compared=is_compared,
        method=FINGERPRINT_METHOD if is_compared else comparison.method,
        parameters_compared=comparison.parameters,
        bytes_compared=comparison.source_bytes,
        source=EquivalentSource(
            uri=uri_of(manifest.source),
            step=manifest.step,
            ranks=manifest.source_world_size,
            fingerprint=None if is_withheld else comparison.source_fingerprint,
        ),
        target=EquivalentTarget(
            ranks=manifest.target_world_size,
            layout=manifest.layout,
            format=manifest.format,
            fingerprint=None if is_withheld else manifest.fingerprint,
        ),
        replicas_compared=comparison.replicas,
        preset=comparison.preset,
        adapter=comparison.adapter,
        declared=None if is_withheld else _declared(manifest, comparison),
        withheld=is_withheld,
        withheld_reason=WITHHELD if is_withheld else "",
    )
    return EquivalenceStatement(subject=tuple(subjects_of(manifest)), predicate=predicate)


def _declared(manifest: Manifest, comparison: Comparison) -> Declared:
    return Declared(
        left_out=left_out_of(manifest),
        changes=changes_of(manifest),
        appended=dict(comparison.appended),
        overflows=dict(comparison.overflows),
        notes=manifest.notes,
    )


def left_out_of(manifest: Manifest) -> LeftOut:
    """Return what a manifest lists of parameters that are left out."""
    return LeftOut(
        excluded=manifest.excluded,
        dropped=manifest.dropped,
        excused=manifest.excused,
        passed_through=manifest.carried,
    )


def changes_of(manifest: Manifest) -> dict[str, JsonValue]:
    """Return a manifest's changes as JSON, without what was not asked for."""
    if manifest.changes == NO_CHANGES:
        return {}
    changes: dict[str, JsonValue] = manifest.changes.model_dump(mode="json", exclude_defaults=True)
    return changes
