"""A rank's file of Megatron: its arguments, its names, and where its tensors belong in the whole model."""

from reshard.core.errors import LayoutError
from reshard.core.layouts.megatron.names import MODEL_NAME, RankPosition
from reshard.core.layouts.megatron.placing import placed_tensors
from reshard.core.layouts.megatron.rank_file import read_rank_file
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.slices import TensorSlice
from tests.fuzz.checkpoints import check_place
from tests.fuzz.mutations import damaged_archive, lying_torch_file
from tests.fuzz.parsers import Parser
from tests.support.places import FIXTURES

_ORIGIN = "hostile_rank"
_CASES = ("legacy_tp1", "legacy_mla_mtp_tp2_pp2", "legacy_moe_tp2_ep2_grouped", "mindspeed_noop_pp2")


def _files() -> list[bytes]:
    folders = [min((FIXTURES / "megatron" / name / "src").glob("*/mp_rank_*")) for name in _CASES]
    return [(folder / MODEL_NAME).read_bytes() for folder in folders]


def _place_rank(data: bytes) -> None:
    location = parse_url(f"memory:///fuzz/{_ORIGIN}/{MODEL_NAME}")
    location.store.put(location.path, data)
    rank = read_rank_file(location, MODEL_NAME)
    try:
        placed = placed_tensors(rank, RankPosition(0, 0, 0))
    except LayoutError:  # of the arguments; who opens an iteration names it
        return
    for tensors, chunk in zip(rank.chunks, placed, strict=True):
        for each in chunk:
            for shard in each.shards(tensors[each.local]):
                check_place(shard.stored, data)
                assert shard.stored.shape == shard.box.shape
                assert TensorSlice.whole(shard.shape).contains(shard.box)


RANK = Parser("megatron-rank", _files, _place_rank, (damaged_archive, lying_torch_file), _ORIGIN, memory_factor=200)
