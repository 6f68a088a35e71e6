from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.files.model import CheckpointFormat, FileIndex


def test_lost_ranks_count_as_ranks() -> None:
    index = FileIndex(CheckpointFormat.CKPT, 10, {})
    records = {rank: CatalogRecord(rank, f"/ck/{rank}.ckpt", 10, "1", index) for rank in (0, 2, 3)}
    catalog = CheckpointCatalog("/ck", CheckpointFormat.CKPT, None, records, lost={1: "damaged"})
    assert catalog.world_size == 4
