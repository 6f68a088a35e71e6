"""The provenance of a target: what was asked for, what was read, by what it was made. Pure.

The predicate is SLSA's, provenance v1. Its `buildType` and the meaning of its parameters are ours:
docs/reference/statements.md describes them.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pydantic import JsonValue

from reshard.core.checkpoint.manifest import FailFastTuple, Manifest
from reshard.core.custody.statements import (
    WITHHELD,
    Dependency,
    Part,
    Statement,
    subjects_of,
    timestamp,
    without_secrets,
)
from reshard.core.runtime.records import Record

PROVENANCE_TYPE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:reshard:conversion:v1"
"""A name without a host: nobody has to keep one for statements to stay valid."""
JOIN_TYPE: Final = "urn:reshard:join:v1"
BUILDER_ID: Final = "urn:reshard:program:v1"


class InternalParameters(Part):
    """What the program decided, and not its user.

    Attributes:
        identity: the plan's identity.
        writer: program and version that wrote the target's files.
        format: format of the target's files.
        layout: how they lie in its directory.
        withheld: True if the target is encrypted: external parameters that may name its parameters are left out.
        withheld_reason: why, in a sentence; empty if nothing was.
    """

    identity: str
    writer: str
    format: str
    layout: str
    withheld: bool = False
    withheld_reason: str = ""


BuildType = Literal["urn:reshard:conversion:v1", "urn:reshard:join:v1"]


class BuildDefinition(Part):
    """What a conversion, or a join of parts, was given."""

    build_type: BuildType = BUILD_TYPE
    external_parameters: dict[str, JsonValue]
    internal_parameters: InternalParameters
    resolved_dependencies: FailFastTuple[Dependency]


class Builder(Part):
    """The program that converted: versions of it, and of what it ran on."""

    id: Literal["urn:reshard:program:v1"] = BUILDER_ID
    version: dict[str, str]


class RunMetadata(Part):
    """The run that completed the target: begin and end by the clock of its machine, which proves no time."""

    invocation_id: str
    started_on: str
    finished_on: str


class RunDetails(Part):
    """How a conversion was carried out."""

    builder: Builder
    metadata: RunMetadata


class Provenance(Part):
    """The predicate."""

    build_definition: BuildDefinition
    run_details: RunDetails


class ProvenanceStatement(Statement):
    """The statement."""

    predicate_type: Literal["https://slsa.dev/provenance/v1"] = PROVENANCE_TYPE
    predicate: Provenance


class Invocation(Record):
    """What is known of a conversion besides its target's manifest.

    Attributes:
        parameters: the request's fields by name, as JSON.
        dependencies: the files that were read.
        versions: what ran: name -> version.
        flow_run: id of the flow run that carried it out; empty if there is none.
        build_type: what was done: a conversion, or a join of parts.
    """

    parameters: Mapping[str, JsonValue]
    dependencies: Sequence[Dependency]
    versions: Mapping[str, str]
    flow_run: str = ""
    build_type: BuildType = BUILD_TYPE


def build_provenance(manifest: Manifest, invocation: Invocation) -> ProvenanceStatement:
    """Build the provenance of a target; its `manifest` is not sealed yet, and has the run and all digests.

    Raises:
        ValueError: it lacks them.
    """
    if manifest.run is None:
        raise ValueError("the manifest does not say when it was made")
    is_withheld = bool(manifest.encryption)
    definition = BuildDefinition(
        build_type=invocation.build_type,
        external_parameters=external_parameters(invocation.parameters, withheld=is_withheld),
        internal_parameters=InternalParameters(
            identity=manifest.identity,
            writer=manifest.writer,
            format=manifest.format,
            layout=manifest.layout,
            withheld=is_withheld,
            withheld_reason=WITHHELD if is_withheld else "",
        ),
        resolved_dependencies=tuple(invocation.dependencies),
    )
    details = RunDetails(
        builder=Builder(version=dict(invocation.versions)),
        metadata=RunMetadata(
            invocation_id=invocation_id(manifest.identity, invocation.flow_run),
            started_on=timestamp(manifest.run.begun),
            finished_on=timestamp(manifest.created),
        ),
    )
    return ProvenanceStatement(
        subject=tuple(subjects_of(manifest)),
        predicate=Provenance(build_definition=definition, run_details=details),
    )


def invocation_id(identity: str, flow_run: str) -> str:
    """Return the name of a run: the plan's identity, and the flow run's id if there is one."""
    return f"{identity}/{flow_run}" if flow_run else identity


def external_parameters(parameters: Mapping[str, JsonValue], *, withheld: bool) -> dict[str, JsonValue]:
    """Return a request's fields without secrets of URLs; if `withheld`, without those that may name parameters.

    Lists are patterns, renames, casts, switches and entries of files; the root of a PyTorch file is keys of its dict.
    """
    return {
        name: without_secrets(value)
        for name, value in parameters.items()
        if not withheld or not (isinstance(value, list) or name == "root")
    }
