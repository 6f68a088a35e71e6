"""A rank's file of FSDP's model or optimizer, among those of the other ranks."""

from reshard.core.layouts.fsdp.checkpoint import open_checkpoint
from reshard.core.layouts.fsdp.places import SavedModel
from reshard.core.storage.listing import names_in
from tests.fuzz.mutations import damaged_archive, lying_torch_file
from tests.fuzz.parsers import Parser
from tests.fuzz.placed import check_shards, place_beside
from tests.support.places import FIXTURES

_ORIGIN = "hostile_rank"
_ROOT = FIXTURES / "fsdp_ranks"
_SEEDS = {
    "case_fsdp2_uneven_optim": ("model_world_size_3_rank_1.pt", "optim_world_size_3_rank_2.pt"),
    "case_tp_fsdp2": ("model_world_size_4_rank_3.pt", "optim_world_size_4_rank_1.pt"),
}


def _files() -> list[bytes]:
    return [(_ROOT / case / "src" / name).read_bytes() for case, names in _SEEDS.items() for name in names]


def _open(data: bytes) -> None:
    case = "case_tp_fsdp2" if b"_StridedShard" in data else "case_fsdp2_uneven_optim"
    name = _SEEDS[case][b"param_groups" in data]
    root = place_beside(_ROOT / case / "src", _ORIGIN, name, data)
    opened = open_checkpoint(SavedModel(str(root), root, tuple(names_in(root))))
    assert opened.strategy.stages
    check_shards(opened.files, name, data)


RANK = Parser("fsdp-rank", _files, _open, (damaged_archive, lying_torch_file), _ORIGIN, memory_factor=200)
