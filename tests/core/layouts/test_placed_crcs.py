"""CRCs of storages that several tensors are in: they are read once, with the tensors."""

from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CheckpointError
from reshard.core.request.source import SourceRequest
from reshard.core.source.opening import TargetOutline, open_source
from tests.support.megatron_sources import megatron_source

FLAT = "legacy_distrib_optim_tp2_dp2"
MOMENT = "optimizer.state.exp_avg.decoder.layers.0.mlp.linear_fc2.weight"


def test_a_flat_buffer_is_not_read_again_for_its_crc(tmp_path: Path) -> None:
    source = megatron_source(FLAT).copied(tmp_path / "ck")
    report = convert(source.request(tmp_path / "out"))
    assert 0 < report.crc_bytes < report.read_bytes / 100, "the paddings alone"

    catalog = open_source(SourceRequest(source=str(source.root)), TargetOutline(crc_later=True)).catalog
    [record, *_] = [record for record in catalog.records.values() if MOMENT in record.index.crcs]
    buffer = record.index.crcs[MOMENT].extent
    assert sum(crc.extent == buffer for crc in record.index.crcs.values()) > 1
    path = Path(record.location)
    data = bytearray(path.read_bytes())
    data[record.index.entries[MOMENT].extents[0].offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as raised:
        convert(source.request(tmp_path / "other"))
    assert str(raised.value).count(f"its {buffer.length} bytes at {buffer.offset} have the CRC-32") == 1
    assert not (tmp_path / "other").exists()
