"""Records and manifests of targets whose files are not really converted."""

from reshard.core.checkpoint.manifest import Manifest, RankSummary, ShardRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.storage.writing import write_bytes
from reshard.core.target.target import Target


def record_of(target: Target, rank: int) -> ShardRecord:
    return ShardRecord(
        identity=target.identity,
        rank=rank,
        file=target.plan.file_name(rank),
        size_bytes=len(target.identity),
        copy_of=None,
        source_ranks=(0,),
        read_bytes=1,
        seconds=0,
        heads=("00",),
        parameters=(),
    )


def manifest_of(target: Target) -> Manifest:
    return Manifest(
        identity=target.identity,
        writer="test",
        created="now",
        source="/src",
        step=None,
        source_world_size=4,
        target_world_size=3,
        format="ckpt",
        verified=VerifyLevel.NONE,
        dropped=(),
        excused=(),
        carried=(),
        notes=(),
        ranks=tuple(
            RankSummary(rank=rank, file=target.plan.file_name(rank), size_bytes=len(target.identity), record_digest="")
            for rank in target.plan.target_ranks
        ),
    )


def convert_ranks(target: Target, *ranks: int, commit: bool = False) -> None:
    """Claims a target and "converts" ranks of it: their files hold the plan's identity."""
    with target.claimed(ranks) as claim:
        workspace = claim.workspace
        for rank in ranks:
            write_bytes(workspace.directory.child(target.plan.file_name(rank)), target.identity.encode())
            workspace.write_record(record_of(target, rank))
        if commit:
            target.commit(manifest_of(target))
