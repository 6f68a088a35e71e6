"""Targets of rank folders: the names of their files."""

from reshard.core.layouts.ranks.target import RankFolders
from tests.support.plans import entry, make_catalog, make_strategy, plan_of, vector


def test_a_file_is_named_after_its_rank() -> None:
    catalog = make_catalog({rank: [entry("w", (2,))] for rank in range(2)})
    strategy = make_strategy({"w": vector(2, True)})
    plan = plan_of(catalog, strategy, strategy, layout=RankFolders("llama_"))
    assert [plan.file_name(rank) for rank in plan.target_ranks] == ["rank_0/llama_0.ckpt", "rank_1/llama_1.ckpt"]
