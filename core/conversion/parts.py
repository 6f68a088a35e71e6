"""Parts: stages that were converted one by one, and the checks that they make one checkpoint together."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from reshard.core.changes.changes import Changes
from reshard.core.checkpoint.manifest import Manifest, ShardRecord
from reshard.core.conversion.part_changes import check_changed_alike
from reshard.core.errors import InputError, TargetError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.recipes import excluded_names
from reshard.core.records.plan_file import rebuild_plan
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.urls import Location
from reshard.core.target.workspace import Workspace, record_digest
from reshard.core.text.options import option


class Part(Record):
    """One stage's finished conversion."""

    location: Location
    manifest: Manifest
    plan: ConversionPlan
    stage: int

    @property
    def workspace(self) -> Workspace:
        """The directory of its files and records."""
        return Workspace(self.location, self.manifest.identity)

    @property
    def parameters(self) -> set[str]:
        """Names of the target's parameters that it has by the strategy."""
        return {parameter.name for parameter in self.plan.match.resharded}

    @property
    def selection(self) -> Changes:
        """The declared selection alone."""
        changes = self.plan.inputs.changes
        return Changes(select=changes.select, include=changes.include, exclude=changes.exclude)

    def left_out(self, names: Collection[str]) -> frozenset[str]:
        """Return those of the target's names that the selection leaves out, of other stages too as far as is known."""
        changes = self.plan.inputs.changes
        if changes.steps or changes.split or changes.join or changes.rename:  # selections are of the source's names
            return self.plan.match.left_out.names
        return self.plan.match.left_out.names | excluded_names(sorted(names), self.selection, set()).keys()

    def allows_missing(self, name: str) -> bool:
        """True if its conversion allowed a parameter of the target to be missing."""
        return any(fnmatchcase(name, pattern) for pattern in self.plan.inputs.allow_missing)

    def record(self, rank: int) -> ShardRecord:
        """Read the record of a rank's file.

        Raises:
            TargetError: it is not the one that the manifest was written for, or names another file than the plan.
        """
        record = self.workspace.read_record(rank, needs_digest=self.manifest.plan_digest is not None)
        digests = [summary.record_digest for summary in self.manifest.ranks if summary.rank == rank]
        if record_digest(record) not in digests:
            raise TargetError(
                f"{self.location}: the record of rank_{rank} is not the one that its manifest was written for"
            )
        if record.file != self.plan.file_name(rank):
            raise TargetError(
                f"{self.location}: the record of rank_{rank} says that its file is {record.file!r}, its plan says "
                f"{self.plan.file_name(rank)!r}: one of them was changed"
            )
        return record

    @property
    def kind(self) -> dict[str, object]:
        """What parts of one checkpoint have in common, by its name in messages."""
        inputs = self.plan.inputs
        stages = inputs.target_strategy.stages if inputs.target_strategy else ()
        return {
            "formats": inputs.format,
            "prefixes": inputs.layout,
            f"numbers of copies ({option('replicas')})": inputs.replicas,
            "source steps": inputs.catalog.step,
            "target strategies": [stage.layouts for stage in stages],
        }


def read_part(location: Location) -> Part:
    """Read the manifest and the plan of a part.

    Raises:
        InputError: it is not a finished, unencrypted conversion of one stage.
    """
    manifest = read_manifest(location)
    if manifest is None:
        raise InputError(
            f"{location}: has no .reshard/manifest.json: it is not a finished conversion, or was not made by reshard"
        )
    if manifest.encryption:
        raise InputError(f"{location}: is encrypted, and such parts cannot be joined; convert its stage unencrypted")
    plan = rebuild_plan(Workspace(location, manifest.identity).plan_url, manifest.plan_digest)
    if plan.part is None:
        raise InputError(
            f"{location}: is not a part: it was not converted with one pipeline stage's own strategy, to a target with "
            "other stages' parameters as well"
        )
    return Part(location, manifest, plan, plan.part)


def check_together(parts: Sequence[Part]) -> None:
    """Check that parts, in the order of their stages, are of one kind and make one complete target.

    Raises:
        InputError: they do not; it names the parts and what is different or missing.
    """
    first = parts[0]
    for part in parts[1:]:
        for what, kind in part.kind.items():
            if kind != first.kind[what]:
                raise _apart(first, part, f"they have different {what}")
    for part, other in pairwise(parts):
        if part.stage == other.stage:
            raise InputError(
                f"{part.location} and {other.location} are both of stage {part.stage}, and their files have the same "
                "names: they are not stages of one checkpoint. Name each stage once"
            )
    check_changed_alike({str(part.location): part.plan for part in parts})
    _check_complete(parts)


def _check_complete(parts: Sequence[Part]) -> None:
    """Check that parts have all parameters of the target's strategy, but those that all of them were to leave out."""
    first = parts[0]
    wanted = first.plan.inputs.target_strategy.parameters if first.plan.inputs.target_strategy else frozenset()
    lacking = wanted.difference(*(part.parameters for part in parts))
    left_out = frozenset(name for part in parts for name in part.left_out(wanted) if name in lacking)
    differing = [part for part in parts if part.selection != first.selection]
    if left_out and differing:
        raise _apart(
            first,
            differing[0],
            "they have different selections, and parameters of the target's strategy were left out of one of them "
            f"only: {listed(sorted(left_out), 6)}. Convert all stages with the same {option('select')}, "
            f"{option('include')} and {option('exclude')}",
        )
    missing = sorted(name for name in lacking - left_out if not any(part.allows_missing(name) for part in parts))
    if missing:
        raise InputError(
            f"no part has {len(missing)} parameters of the target's strategy ({listed(missing, 6)}): there are the "
            f"parts of stages {stages_text(parts)}; name the others' as well"
        )


def stages_text(parts: Sequence[Part]) -> str:
    """Message text: the stages of parts."""
    return ", ".join(str(part.stage) for part in parts)


def _apart(first: Part, other: Part, why: str) -> InputError:
    return InputError(f"{first.location} and {other.location} do not go together: {why}")
