"""The manifest of joined parts."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from reshard import __version__
from reshard.core.changes.changes import NO_CHANGES
from reshard.core.checkpoint.manifest import Manifest, RankSummary, RunRecord, SourceFileRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.parts import Part


def joint_manifest(
    parts: Sequence[Part],
    identity: str,
    ranks: Sequence[RankSummary],
    sources: Sequence[SourceFileRecord],
    run: RunRecord,
    notes: Iterable[str],
) -> Manifest:
    """Return the manifest of joined parts; `sources` are their files, if the SHA-256 of these was taken."""
    manifests = [part.manifest for part in parts]
    first = manifests[0]
    origins = "; ".join(f"stage {part.stage}: {part.location}" for part in parts)
    return Manifest(
        identity=identity,
        writer=f"reshard {__version__}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=", ".join(dict.fromkeys(manifest.source for manifest in manifests)),
        step=first.step,
        source_world_size=sum(manifest.source_world_size for manifest in manifests),
        target_world_size=len(ranks),
        format=first.format,
        verified=VerifyLevel.CHECKSUM,
        dropped=_united(manifest.dropped for manifest in manifests),
        excused=_united(manifest.excused for manifest in manifests),
        carried=_united(manifest.carried for manifest in manifests),
        notes=(f"joined from the parts that stages were converted to: {origins}", *notes),
        ranks=tuple(ranks),
        # they may differ between stages, because rules that match nothing in a stage are refused there
        changes=first.changes if all(each.changes == first.changes for each in manifests) else NO_CHANGES,
        excluded=_united(manifest.excluded for manifest in manifests),
        plan_digest="",
        run=run,
        source_files=tuple(sources),
    )


def _united(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return all names, each once."""
    return tuple(dict.fromkeys(name for some in names for name in some))
