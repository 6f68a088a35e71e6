"""A rank's file of DeepSpeed's model or optimizer, among those of the other ranks."""

from reshard.core.layouts.deepspeed.checkpoint import open_tag
from reshard.core.layouts.deepspeed.tags import Tag
from reshard.core.storage.listing import names_in
from tests.fuzz.mutations import damaged_archive, lying_torch_file
from tests.fuzz.parsers import Parser
from tests.fuzz.placed import check_shards, place_beside
from tests.support.places import FIXTURES

_ORIGIN = "hostile_rank"
_ROOT = FIXTURES / "deepspeed"
_SEEDS = {
    "case_zero2_two_groups_tied_frozen": (
        "mp_rank_00_model_states.pt",
        "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
    ),
    "case_zero3_sub_groups_frozen": (
        "zero_pp_rank_1_mp_rank_00_model_states.pt",
        "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt",
    ),
}


def _files() -> list[bytes]:
    return [
        (_ROOT / case / "src" / "global_step2" / name).read_bytes() for case, names in _SEEDS.items() for name in names
    ]


def _open(data: bytes) -> None:
    is_optimizer = b"optimizer_state_dict" in data
    is_partitioned = (b"fp32_flat_groups" if is_optimizer else b"zero_pp_rank") in data
    case = list(_SEEDS)[is_partitioned]
    name = _SEEDS[case][is_optimizer]
    root = place_beside(_ROOT / case / "src" / "global_step2", _ORIGIN, name, data)
    opened = open_tag(Tag(str(root), root, 2, tuple(names_in(root))))
    assert opened.strategy.stages
    check_shards(opened.files, name, data)


RANK = Parser("zero-rank", _files, _open, (damaged_archive, lying_torch_file), _ORIGIN, memory_factor=200)
